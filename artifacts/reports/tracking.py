"""Tracks runs in MLflow: one MLflow run per training run, with its effective config as parameters
and its metrics by step, named `stage/quantity_unit`.

Only the flow's process writes. Every entry goes through an `outbox`, so that training goes on while
a tracking server is down. Steps that MLflow already has are skipped, so a resumed run may log all
its commits again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from getpass import getuser
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVarTuple

from artifacts.reports.figures import with_headlines
from artifacts.reports.mlflow_client import (
    TrackedData,
    log_model,
    machine_monitor,
    open_client,
    reopen,
    send_data,
    send_file,
    send_metrics,
    send_missing_params,
    send_params,
    send_tags,
    send_view,
    sqlite_file,
)
from artifacts.reports.outbox import Outbox, first_line
from artifacts.reports.tracker_threads import Trackers
from artifacts.reports.trackers import TrackerStatus
from artifacts.store import Store

if TYPE_CHECKING:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
    from mlflow.tracking import MlflowClient

Ts = TypeVarTuple("Ts")

logger = logging.getLogger(__name__)

MARKER_METRIC = "round/step"  # logged with every step: its history has the steps of MLflow
NOTE_TAG = "mlflow.note.content"
RUN_NAME_TAG = "mlflow.runName"
SOURCE_TAGS = {"mlflow.source.name": "flows/train.py", "mlflow.source.type": "LOCAL"}
GIT_TAG = "mlflow.source.git.commit"
USER_TAG = "mlflow.user"
CURE = "start the server, correct keep.tracking_uri, or leave it empty for a local file"
REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED")  # MLflow's names for 401 and 403
PASSWORD_CURE = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to those"
    " of a user that it lets in"
)


def flatten(
    config: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str]]:  # Any: JSON values
    """Yield each leaf of a nested config as its dotted name and its value as text. An empty mapping
    is a leaf."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


class ExperimentDeleted(ValueError):
    """Raised for a deleted experiment: MLflow reserves its name, but accepts no runs for it."""


def ended_by(error: BaseException) -> TrackerStatus:
    """The MLflow status of a run that this error ended: FAILED, or KILLED from outside."""
    return "FAILED" if isinstance(error, Exception) else "KILLED"


class RunTracker:
    """Writes one MLflow run. Call `start` first; no later call raises because of MLflow."""

    def __init__(self, uri: str, others: Trackers | None = None) -> None:
        """others: trackers that get the metrics of steps and evaluations, too."""
        self.uri = uri
        self.run_id = ""
        self._client: MlflowClient | None = None
        self.outbox = Outbox(uri)  # entries that MLflow has not taken yet, and refused ones
        self._logged: dict[str, set[int]] = {}
        self._is_resumed = False
        self._others = others or Trackers({})
        self._monitor: SystemMetricsMonitor | None = None
        self._told: set[str] = set()  # sentences of `untold` so far

    @property
    def page(self) -> str:
        """URL of the run's page on the tracking server; "" if the tracking URI is no server."""
        return f"{self.uri.rstrip('/')}/#/runs/{self.run_id}" if self.uri.startswith("http") else ""

    def start(
        self,
        *,
        experiment: str,
        run_name: str,
        params: Mapping[str, Any],  # Any: JSON values
        tags: Mapping[str, str],
        run_id: str | None = None,
        data: TrackedData | None = None,
        git_sha: str | None = None,
    ) -> str:
        """Create the MLflow run, or continue the run `run_id` if MLflow has it; returns the MLflow
        run id. A continued run keeps its parameters and gets those that it lacks. Raises
        ConnectionError if a new run cannot be created, ExperimentDeleted for such an experiment."""
        annotated = {
            **SOURCE_TAGS,
            **user_tag(),
            **tags,
            NOTE_TAG: describe(tags),
            RUN_NAME_TAG: run_name,
        }
        if git_sha is not None:
            annotated[GIT_TAG] = git_sha
        if run_id is not None and not self._is_unknown(run_id):
            self.run_id, self._is_resumed = run_id, True
            self._put("the resumed run", reopen, annotated)
            self._put("the parameters", send_missing_params, dict(flatten(params)))
            self._others.begin(run_name, experiment, params)
            return run_id
        try:
            self._client = open_client(self.uri)
            experiment_id = self._experiment(experiment)
            self.run_id = self._client.create_run(experiment_id, tags=annotated).info.run_id
        except ExperimentDeleted:
            raise
        except Exception as error:
            cure = PASSWORD_CURE if getattr(error, "error_code", "") in REFUSALS else CURE
            raise ConnectionError(
                f"MLflow must answer at {self.uri}, got {first_line(error)}; {cure}"
            ) from error
        self._put("the parameters", send_params, dict(flatten(params)))
        self.outbox.put("the view of runs", lambda: send_view(self._connected(), experiment_id))
        if data is not None:
            self._put("the data set", send_data, data)
        self._others.begin(run_name, experiment, params)
        return self.run_id

    def measure_machine(self) -> None:
        """Log processors, memory, disk, network and GPUs of this machine to MLflow every 10 s until
        `end`. Stops by itself, with a warning in the log, when MLflow does not answer."""
        self._monitor = machine_monitor(self.uri, self.run_id, self._is_resumed)

    def log_step(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Log a step's metrics, unless MLflow has this step already. True if no entry is waiting
        afterwards."""
        metrics = with_headlines(metrics)
        self._others.log(step, metrics)
        return self._log(MARKER_METRIC, step, {**metrics, MARKER_METRIC: step})

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Log metrics of a step that are not part of its commit, such as held-out scores, unless
        MLflow has the alphabetically first one of this step."""
        key, metrics = min(metrics), with_headlines(metrics)
        self._others.log(step, metrics)
        return self._log(key, step, metrics)

    def log_state(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Log the state of the run after a step. A later call for the same step, for example after
        its evaluation, supersedes it."""
        subject, now_ms = f"the state after step {step}", int(time.time() * 1000)
        return self._put(subject, send_metrics, step, dict(metrics), now_ms)

    def log_file(self, data: bytes, name: str) -> bool:
        """Log bytes as an artifact called `name`, for example "report/reward.png"."""
        return self._put(name, send_file, data, PurePosixPath(name))

    def describe(self, note: str) -> bool:
        """Set the description of the MLflow run, in Markdown."""
        return self._put("the description", send_tags, {NOTE_TAG: note})

    def tag(self, name: str, text: str) -> bool:
        """Set a tag of the MLflow run, in place of its earlier value."""
        return self._put(f"the tag {name}", send_tags, {name: text})

    def log_model(self, store: Store, digest: str, registered_name: str) -> str:
        """Log the model in the run's store, once for weights of this digest, and register it if a
        name is given. Returns "", or the reason why MLflow did not take the model; a failed call is
        not queued for another try."""
        try:
            log_model(self._connected(), self.run_id, store, digest, registered_name)
        except Exception as error:
            return first_line(error)
        return ""

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the MLflow run if the block fails (FAILED) or is interrupted (KILLED)."""
        try:
            yield
        except BaseException as error:
            self.end(ended_by(error))
            raise

    def untold(self) -> list[str]:
        """A sentence for each other tracker that lacks something of the run; none twice."""
        new = [told for told in self._others.warnings if told not in self._told]
        self._told.update(new)
        return new

    def end(self, status: TrackerStatus, at_s: float | None = None) -> bool:
        """End the MLflow run, if there is one. Waiting calls are tried a last time, and a warning
        names those that still fail. Returns True if none does. at_s: time of the end, Unix seconds;
        None for now. Other trackers are waited for, up to a limit."""
        self._others.finish(status)
        if not (self.run_id or self.outbox.waiting):
            return True
        if self._monitor is not None:
            self._monitor.finish()
        at_ms = None if at_s is None else int(1000 * at_s)
        self.outbox.put(
            "the end",
            lambda: self._connected().set_terminated(self.run_id, status, at_ms),
            is_last=True,
        )
        lost = self.outbox.waiting
        if lost:
            logger.warning("tracking=%s run=%s lost=%s", self.uri, self.run_id, ", ".join(lost))
        return not lost

    def _log(self, key: str, step: int, metrics: Mapping[str, float]) -> bool:
        numbers = {name: float(value) for name, value in metrics.items()}
        now_ms = int(time.time() * 1000)

        def send() -> None:
            logged = self._logged_steps(key)
            if step not in logged:
                send_metrics(self._connected(), self.run_id, step, numbers, now_ms)
                logged.add(step)

        return self.outbox.put(f"{key} of step {step}", send)

    def _connected(self) -> MlflowClient:
        if self._client is None:
            self._client = open_client(self.uri)
        return self._client

    def _experiment(self, name: str) -> str:
        client = self._connected()
        if (found := client.get_experiment_by_name(name)) is not None:
            if found.lifecycle_stage != "active":
                raise ExperimentDeleted(
                    f"keep.experiment must not be deleted, {name!r} is at {self.uri}; give another"
                    f" one, or 'mlflow experiments restore -x {found.experiment_id}' with"
                    " MLFLOW_TRACKING_URI set to that address"
                )
            return str(found.experiment_id)
        database = sqlite_file(self.uri)
        location = (database.parent / "mlartifacts").as_uri() if database else None
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except Exception:
            if (found := client.get_experiment_by_name(name)) is None:
                raise
            return str(found.experiment_id)  # another run has made it meanwhile

    def _is_unknown(self, run_id: str) -> bool:
        """True if MLflow answers that it has no such run: its URI has changed, or it is new."""
        try:
            self._connected().get_run(run_id)
        except Exception as error:
            return getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"
        return False

    def _put(self, subject: str, send: Callable[[MlflowClient, str, *Ts], None], *of: *Ts) -> bool:
        """Queue a call of `send` with the client, this run's id and the arguments `of`."""
        return self.outbox.put(subject, lambda: send(self._connected(), self.run_id, *of))

    def _logged_steps(self, key: str) -> set[int]:
        """The steps for which MLflow has the metric `key`, read once and of a resumed run only."""
        if key not in self._logged:
            history = (
                self._connected().get_metric_history(self.run_id, key) if self._is_resumed else []
            )
            self._logged[key] = {point.step for point in history}
        return self._logged[key]


def user_tag() -> dict[str, str]:
    """MLflow's tag with the name of the user; empty where the system has no name for them."""
    with suppress(KeyError, OSError):
        return {USER_TAG: getuser()}
    return {}


def describe(tags: Mapping[str, str]) -> str:
    """The description of the MLflow run in Markdown: a list of the tags, with URLs as links."""
    lines = [
        f"* {name}: {f'[{value}]({value})' if value.startswith('http') else value}"
        for name, value in tags.items()
        if value
    ]
    return "\n".join(["Trained by Rollflow.", "", *lines])
