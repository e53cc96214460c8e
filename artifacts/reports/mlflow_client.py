"""Opens MLflow's client, without telemetry and with short timeouts, and makes the calls that send a
run's parameters, metrics, tags, files, inputs, views and trained model. Each call raises what the
client raises; `tracking` handles failures."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from artifacts import layout
from artifacts.proxies import bypass_proxies
from artifacts.reports.figures import COLUMNS, HEADLINES
from artifacts.reports.outbox import first_line
from artifacts.store import Store

if TYPE_CHECKING:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
    from mlflow.tracking import MlflowClient

logger = logging.getLogger(__name__)

SQLITE = "sqlite:///"
# MLflow's own defaults let one call to a dead server take minutes; a step must not wait for that.
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # a busy server may ask for an hour
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def open_client(uri: str) -> MlflowClient:
    """Open a client for a tracking URI, without telemetry; makes a missing SQLite file and its
    directory. MLflow is imported here, because that takes 1.5 s."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    bypass_proxies()
    from mlflow.tracking import MlflowClient

    for chatty in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # or it logs each try
    database = sqlite_file(uri)
    if database is not None and not database.exists():
        _make_tables(database)
    return MlflowClient(tracking_uri=uri)


def _make_tables(database: Path) -> None:
    """Let MLflow make its tables in another file, which then becomes `database`: a file in which
    that was broken off, or done by two at once, MLflow can never use again."""
    from mlflow.tracking import MlflowClient

    database.parent.mkdir(parents=True, exist_ok=True)
    aside = database.with_name(f".{database.name}.{uuid.uuid4().hex}")
    try:
        MlflowClient(tracking_uri=sqlite_uri(aside))
        with suppress(FileExistsError):  # another run was faster
            os.link(aside, database)
    finally:
        aside.unlink(missing_ok=True)


def sqlite_uri(database: Path, scheme: str = "sqlite") -> str:
    """The URI of a SQLite file, with % and ? quoted: SQLAlchemy would read %41 as an A, and ? as
    the path's end."""
    return f"{scheme}:///" + str(database).replace("%", "%25").replace("?", "%3F")


def sqlite_file(uri: str) -> Path | None:
    """Path of the database file of a `sqlite:///` URI; None for other URIs."""
    return Path(unquote(uri.removeprefix(SQLITE))).resolve() if uri.startswith(SQLITE) else None


MAX_PARAMS_PER_CALL = 100
MAX_PARAM_CHARS = 6000
MAX_NAME_CHARS = 250
# a shared view of the runs, which MLflow keeps as a tag of the experiment: its charts, and its few
# columns: MLflow sorts them by name, attributes first, and rewards would be out of sight
VIEW = "rollflow"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
VIEW_COLUMNS = (*(f"metrics.`{name}`" for name in COLUMNS), "tags.`rollflow.scheduling`")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedData:
    """Description of a run's data set for MLflow."""

    name: str  # kind of its source
    digest: str  # equal for equal questions in equal order
    source: str  # where the rows come from: the task's configuration as JSON
    num_rows: int  # questions to train on
    num_heldout: int  # questions that are held out


def send_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])


def reopen(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set an ended MLflow run's status back to running, and set these tags."""
    client.set_terminated(run_id, "RUNNING")
    send_tags(client, run_id, tags)


def send_view(client: MlflowClient, experiment_id: str) -> None:
    """Set the columns that the list of the experiment's runs shows without a click, and the charts
    that stand first where MLflow draws them, before a section for each first part of a name."""
    section = {"uuid": VIEW, "name": "headlines", "display": True, "isReordered": True}
    view = {
        "selectedColumns": VIEW_COLUMNS,
        "compareRunCharts": [_line_chart(name) for name in HEADLINES],
        "compareRunSections": [{**section, "deleted": False, "isGenerated": False}],
        "isAccordionReordered": True,
    }
    client.set_experiment_tag(experiment_id, VIEW_TAG, json.dumps(view, separators=(",", ":")))


def _line_chart(metric: str) -> dict[str, object]:
    """A chart of a metric by step, as MLflow's page keeps it."""
    return {
        "type": "LINE",
        "uuid": metric,
        "metricSectionId": VIEW,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "runsCountToCompare": 10,
        "scaleType": "linear",
        "xAxisKey": "step",
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def send_data(client: MlflowClient, run_id: str, data: TrackedData) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    columns = [
        {"name": name, "type": "string", "required": True}
        for name in ("domain", "question", "answer")
    ]
    dataset = Dataset(
        name=data.name,
        digest=data.digest,
        source_type="code",
        source=data.source,
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps({"num_rows": data.num_rows, "num_heldout": data.num_heldout}),
    )
    tags = [InputTag("mlflow.data.context", "training")]
    client.log_inputs(run_id, [DatasetInput(dataset, tags)])


def send_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    entries = [
        Param(_accepted_name(name), value[:MAX_PARAM_CHARS]) for name, value in params.items()
    ]
    for first in range(0, len(entries), MAX_PARAMS_PER_CALL):
        client.log_batch(run_id, params=entries[first : first + MAX_PARAMS_PER_CALL])


def send_missing_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    """Send the parameters that MLflow lacks: it refuses a second value for a known parameter."""
    known = client.get_run(run_id).data.params
    missing = {name: value for name, value in params.items() if _accepted_name(name) not in known}
    send_params(client, run_id, missing)


def send_metrics(
    client: MlflowClient, run_id: str, step: int, metrics: Mapping[str, float], now_ms: int
) -> None:
    from mlflow.entities import Metric

    batch = [Metric(_accepted_name(name), value, now_ms, step) for name, value in metrics.items()]
    client.log_batch(run_id, metrics=batch)


def send_file(client: MlflowClient, run_id: str, data: bytes, name: PurePosixPath) -> None:
    """Send bytes as an artifact, through a temporary file: the client takes only files."""
    with tempfile.TemporaryDirectory(prefix="rollflow-") as directory:
        path = Path(directory, name.name)
        path.write_bytes(data)
        client.log_artifact(run_id, str(path), str(name.parent) if name.parent.name else None)


def machine_monitor(uri: str, run_id: str, is_resumed: bool) -> SystemMetricsMonitor | None:
    """Start a thread that logs `system/...` metrics of this machine to the run; a resumed run's go
    on from its last one. None, with a warning in the log, if that is not possible."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    try:
        monitor = SystemMetricsMonitor(run_id, resume_logging=is_resumed, tracking_uri=uri)
    except Exception as error:  # whatever MLflow's client raises
        logger.warning("tracking=%s no system metrics reason=%s", uri, first_line(error))
        return None
    monitor.start()
    return monitor


def _accepted_name(name: str) -> str:
    """Change a name to one that MLflow accepts, as users name domains freely: not too long, without
    other characters, and no path that leads outside."""
    parts = re.sub(r"[^\w\-./ :]", "_", name.replace("*", "any")).split("/")
    return "/".join(part if part.strip(".") else "_" for part in parts)[:MAX_NAME_CHARS]


DIGEST_TAG = "rollflow.logged_model"  # of the run: digest of the weights that MLflow has
TASK = "text-generation"
PACKAGES = ("torch", "transformers", "safetensors")  # needed to load the model


def log_model(
    client: MlflowClient, run_id: str, store: Store, digest: str, registered_name: str
) -> None:
    """Log the run's exported model to MLflow, and register it if a name is given. Does nothing if
    weights with this digest were logged already."""
    run = client.get_run(run_id)
    if run.data.tags.get(DIGEST_TAG) == digest:
        return
    with tempfile.TemporaryDirectory(prefix="rollflow-mlflow-") as scratch:
        if store.is_local:
            model = store.local_path(layout.MODEL)
        else:
            model = Path(scratch) / layout.MODEL
            store.download(layout.MODEL, model)
        saved = _saved(model, Path(scratch) / "saved")
        logged = client.create_logged_model(
            run.info.experiment_id, name=layout.MODEL, source_run_id=run_id, tags={"digest": digest}
        )
        client.log_model_artifacts(logged.model_id, str(saved))
        client.finalize_logged_model(logged.model_id, "READY")
    if registered_name:
        if not client.search_registered_models(f"name = '{registered_name}'"):
            client.create_registered_model(registered_name)
        # by its location: MLflow would look models:/ID up at the process's tracking URI
        client.create_model_version(
            registered_name, logged.artifact_location, run_id=run_id, model_id=logged.model_id
        )
    client.set_tag(run_id, DIGEST_TAG, digest)


def _saved(model: Path, target: Path) -> Path:
    """Write the model's directory in MLflow's format to `target`; weights are copied as files."""
    from mlflow.transformers import save_model

    # MLflow looks for a model card at a registry, and logs that there is none
    logging.getLogger("mlflow.transformers").setLevel(logging.ERROR)
    requirements = [f"{name}=={version(name)}" for name in PACKAGES]
    save_model(
        transformers_model=str(model), path=str(target), task=TASK, pip_requirements=requirements
    )
    return target
