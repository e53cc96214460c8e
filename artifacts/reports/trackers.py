"""Experiment trackers beside MLflow: W&B, TensorBoard, SwanLab and trackio, each by its own
library, which is imported when a run begins.

    Tracker: begin ─▶ log, log, ... ─▶ finish

A run that begins again with the same id goes on in the same place. Without an account W&B and
SwanLab write files, which `wandb sync` and `swanlab sync` send later. Calls may raise and block:
`tracker_threads` handles both. MLflow itself is not one of them (`tracking`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from artifacts.reports.outbox import first_line

TrackerName = Literal["wandb", "tensorboard", "swanlab", "trackio"]
TrackerStatus = Literal["FINISHED", "FAILED", "KILLED"]
STEP = "step"  # the metric that W&B takes for the horizontal axis of all others


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The identity of a run in a tracker."""

    run_id: str  # the same when the run is resumed
    project: str
    folder: Path  # for the files of all trackers of the run


class Tracker(Protocol):
    """A place that shows the metrics of runs. Every method may raise any Exception."""

    def begin(self, run: TrackedRun, params: Mapping[str, Any]) -> None:  # Any: JSON values
        """Begin the run with its effective configuration, or go on with the run of this id."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step by name. A step may come in several calls."""

    def finish(self, status: TrackerStatus) -> None:
        """End the run, and write what is still held back."""


class WandbTracker:
    """Weights & Biases. Without a key it writes files for `wandb sync`."""

    _run: Any  # Any: the library has no types here

    def begin(self, run: TrackedRun, params: Mapping[str, Any]) -> None:  # Any: JSON values
        import wandb

        try:
            self._run = self._begun(run, params)
        except wandb.errors.Error as error:
            raise ConnectionError(
                f"{first_line(error)}; 'export WANDB_MODE=offline' writes files for `wandb sync`"
            ) from error
        # a step of the library's own must never go back, which metrics of an evaluation may
        self._run.define_metric("*", step_metric=STEP)

    @staticmethod
    def _begun(run: TrackedRun, params: Mapping[str, Any]) -> Any:  # Any: no types, JSON values
        import wandb

        wanted = wandb.setup().settings.mode
        run.folder.mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=run.project,
            id=run.run_id,
            name=run.run_id,
            dir=str(run.folder),
            resume="allow",
            reinit="create_new",
            config=dict(params),
            # "online" would ask for a key on the terminal
            mode="offline" if wanted == "online" and not wandb.login(prompt=False) else wanted,
            settings=wandb.Settings(console="off", silent=True, x_save_requirements=False),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({STEP: step, **metrics})

    def finish(self, status: TrackerStatus) -> None:
        self._run.finish(exit_code=0 if status == "FINISHED" else 1)


class TensorboardTracker:
    """TensorBoard's event files; `tensorboard --logdir runs` shows those of all runs."""

    _writer: Any  # Any: the library has no types here

    def begin(self, run: TrackedRun, params: Mapping[str, Any]) -> None:  # Any: JSON values
        from tensorboard.compat.proto import summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(run.folder / "tensorboard"))
        text = "\n".join(f"    {line}" for line in json.dumps(params, indent=1).splitlines())
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()])
        about = create_summary_metadata("configuration", "")
        value = summary_pb2.Summary.Value(tag="configuration", tensor=tensor, metadata=about)
        self._add(0, [value])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step, values)

    def _add(self, step: int, values: Sequence[Any]) -> None:  # Any: protocol buffers
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(
            Event(wall_time=time.time(), step=step, summary=Summary(value=values))
        )
        self._writer.flush()

    def finish(self, status: TrackerStatus) -> None:
        self._writer.close()


class SwanlabTracker:
    """SwanLab. Without a key it writes files for `swanlab sync`."""

    _run: Any  # Any: the library has no types here

    def begin(self, run: TrackedRun, params: Mapping[str, Any]) -> None:  # Any: JSON values
        import swanlab

        known = swanlab.Settings()  # of the environment or a login
        self._run = swanlab.init(
            project=run.project,
            id=run.run_id,
            name=run.run_id,
            log_dir=str(run.folder / "swanlab"),
            mode=known.mode if known.api_key or known.mode != "online" else "offline",
            resume="allow",
            reinit=True,
            config=dict(params),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, status: TrackerStatus) -> None:
        match status:
            case "FINISHED":
                self._run.finish(state="success")
            case "FAILED":
                self._run.finish(state="crashed", error="the run failed")
            case "KILLED":
                self._run.finish(state="aborted")


class TrackioTracker:
    """trackio, in the folder of all its runs (`TRACKIO_DIR`); `trackio show` shows them."""

    _run: Any  # Any: the library has no types here

    def begin(self, run: TrackedRun, params: Mapping[str, Any]) -> None:  # Any: JSON values
        import trackio

        self._run = trackio.init(
            project=run.project,
            name=run.run_id,
            resume="allow",
            config=dict(params),
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, status: TrackerStatus) -> None:
        self._run.finish()


TRACKERS: Mapping[TrackerName, type[Tracker]] = {
    "wandb": WandbTracker,
    "tensorboard": TensorboardTracker,
    "swanlab": SwanlabTracker,
    "trackio": TrackioTracker,
}


PACKAGES: Mapping[TrackerName, str] = {  # as the extras of pyproject.toml have them
    "wandb": "wandb==0.31.0",
    "tensorboard": "tensorboard==2.21.0",
    "swanlab": "swanlab==0.10.3",
    "trackio": "trackio==0.43.0",
}


def misfit_of_trackers(names: Sequence[TrackerName]) -> str:
    """A sentence on trackers whose library is not installed; empty if all are. Imports none."""
    missing = [name for name in names if find_spec(name) is None]
    if not missing:
        return ""
    packages = " ".join(f"'{PACKAGES[name]}'" for name in missing)
    return (
        f"keep.trackers must name trackers whose library is installed, {' and '.join(missing)}"
        f" cannot be imported; pip install {packages}, or leave them out"
    )
