"""Calls of MLflow's client: what a run tells, as parameters, metrics, tags, files, inputs and views
of MLflow's own. Each raises what the client raises."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from artifacts.reports.figures import COLUMNS

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

MAX_PARAMS_PER_CALL = 100
MAX_PARAM_CHARS = 6000
MAX_NAME_CHARS = 250
# a shared view of the list of runs, which MLflow keeps as a tag of the experiment: its columns
VIEW = "rollflow"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
VIEW_COLUMNS = (
    *(f"metrics.`{name}`" for name in COLUMNS),
    "attributes.`Dataset`",
    "attributes.`Source`",
    "tags.`rollflow.scheduling`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedData:
    """The data set of a run, as MLflow names it."""

    name: str  # kind of its source
    digest: str  # tells equal questions in equal order
    source: str  # where the rows come from: the task's configuration as JSON
    num_rows: int  # questions to train on
    num_heldout: int  # questions that are held out


def send_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])


def send_view(client: MlflowClient, experiment_id: str) -> None:
    """What the list of the experiment's runs shows without a click."""
    view = json.dumps({"selectedColumns": VIEW_COLUMNS})
    client.set_experiment_tag(experiment_id, VIEW_TAG, view)


def send_data(client: MlflowClient, run_id: str, data: TrackedData) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    columns = [
        {"name": name, "type": "string", "required": True}
        for name in ("domain", "question", "answer")
    ]
    told = Dataset(
        name=data.name,
        digest=data.digest,
        source_type="code",
        source=data.source,
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps({"num_rows": data.num_rows, "num_heldout": data.num_heldout}),
    )
    tags = [InputTag("mlflow.data.context", "training")]
    client.log_inputs(run_id, [DatasetInput(told, tags)])


def send_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    entries = [
        Param(_accepted_name(name), value[:MAX_PARAM_CHARS]) for name, value in params.items()
    ]
    for first in range(0, len(entries), MAX_PARAMS_PER_CALL):
        client.log_batch(run_id, params=entries[first : first + MAX_PARAMS_PER_CALL])


def send_missing_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    """Those that MLflow lacks. The others stay what they are: it takes no second value."""
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
    """By way of a folder: the client takes files only."""
    with tempfile.TemporaryDirectory(prefix="rollflow-") as directory:
        path = Path(directory, name.name)
        path.write_bytes(data)
        client.log_artifact(run_id, str(path), str(name.parent) if name.parent.name else None)


def _accepted_name(name: str) -> str:
    """MLflow refuses other characters, paths that lead elsewhere and long names, and with one bad
    name all of the call. Domains, which users name, are part of names."""
    parts = re.sub(r"[^\w\-./ :]", "_", name.replace("*", "any")).split("/")
    return "/".join(part if part.strip(".") else "_" for part in parts)[:MAX_NAME_CHARS]
