"""The trained model in MLflow: logged as a model of its run, and registered under a name if one is
given.

    runs/ID/model ─▶ MLflow's transformers flavour ─▶ logged model of the run ─▶ registered version

Whoever loads it gets a text-generation pipeline: mlflow.transformers.load_model("models:/NAME/1").
The weights are copied into MLflow's artifact store. Leaves out failures, which `tracking` meets.
"""

from __future__ import annotations

import logging
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts import layout
from artifacts.store import Store

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.tracking import MlflowClient

DIGEST_TAG = "rollflow.logged_model"  # of the run: the weights that MLflow has of it
TASK = "text-generation"
PACKAGES = ("torch", "transformers", "safetensors")  # what loading it needs


def log_model(
    client: MlflowClient, run_id: str, store: Store, digest: str, registered_name: str
) -> None:
    """Log the run's exported model, and register it where a name is given. Nothing happens when
    these weights (`digest`) were logged already."""
    run = client.get_run(run_id)
    if run.data.tags.get(DIGEST_TAG) == digest:
        return
    with tempfile.TemporaryDirectory(prefix="rollflow-mlflow-") as scratch:
        saved = _saved(_local_model(store, Path(scratch)), Path(scratch) / "saved")
        logged = client.create_logged_model(
            run.info.experiment_id, name=layout.MODEL, source_run_id=run_id, tags={"digest": digest}
        )
        client.log_model_artifacts(logged.model_id, str(saved))
        client.finalize_logged_model(logged.model_id, "READY")
    if registered_name:
        _register(client, run_id, logged, registered_name)
    client.set_tag(run_id, DIGEST_TAG, digest)


def _local_model(store: Store, scratch: Path) -> Path:
    """The model's directory on this machine; of a remote store a copy."""
    if store.is_local:
        return store.local_path(layout.MODEL)
    store.download(layout.MODEL, scratch / layout.MODEL)
    return scratch / layout.MODEL


def _saved(model: Path, target: Path) -> Path:
    """The directory in MLflow's form. The weights are copied as files, never loaded."""
    from mlflow.transformers import save_model

    # it looks for a model card at a registry, and says so when there is none
    logging.getLogger("mlflow.transformers").setLevel(logging.ERROR)
    requirements = [f"{name}=={version(name)}" for name in PACKAGES]
    save_model(
        transformers_model=str(model), path=str(target), task=TASK, pip_requirements=requirements
    )
    return target


def _register(client: MlflowClient, run_id: str, logged: LoggedModel, name: str) -> None:
    """By its place, not as models:/ID: that form is looked up at a tracking URI of the process,
    which is not the client's."""
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    client.create_model_version(
        name, logged.artifact_location, run_id=run_id, model_id=logged.model_id
    )
