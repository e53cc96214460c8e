"""rollflow track: send MLflow everything of a finished run that it lacks.

    manifest, commits, evaluations, report, status ─▶ MLflow: missing entries, and the run's end

For a run that ended while MLflow was away, or that was killed. A second call sends nothing twice
but the pages of the report. Leaves out the description of the data set."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace

from artifacts import layout
from artifacts.commit import (
    RunManifest,
    StepCommit,
    figures_by_step,
    read_commits,
    read_manifest,
    write_manifest,
)
from artifacts.private_files import private_files
from artifacts.reports.figures import read_figures
from artifacts.reports.mlflow_client import open_client
from artifacts.reports.outbox import first_line
from artifacts.reports.summary import description
from artifacts.reports.trackers import TrackerStatus
from artifacts.reports.tracking import RunTracker
from artifacts.status import RunStatus, State, read_status
from artifacts.store import Store
from artifacts.urls import TRACKING
from flows.commands.options import add_run, command, run_store
from flows.config.run_config import RunConfig
from flows.config.settings_file import kept_config
from flows.evaluate import kept_evaluation
from flows.reporter import ALARM_TAG
from flows.run import evaluated_steps
from flows.run_record import tags_of
from tasks.metrics.monitors import warnings_of

ENDED: dict[State, TrackerStatus] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
SUMMARY = "summary.md"
PAGES = (".md", ".png")  # endings of the files that MLflow gets beside the report's page


def track(store: Store, config: RunConfig, uri: str) -> str:
    """Send what MLflow lacks; returns one line. ValueError if the run goes on, else
    ConnectionError."""
    manifest, commits = read_manifest(store), read_commits(store)
    status = _final_status(store, manifest)
    try:
        open_client(uri).search_experiments(max_results=1)
    except Exception as error:  # whatever MLflow's client raises
        raise ConnectionError(
            f"MLflow must answer at {uri}, got {first_line(error)}; start it, or name another with"
            " --tracking-uri"
        ) from error
    tracker = _tracker_of(store, manifest, config, uri)
    _send_steps(tracker, store, commits, config)
    _send_report(tracker, store, len(commits))
    refusal = ""
    if config.keep.log_model and commits and store.exists(layout.MODEL):
        digest = commits[-1].weights.digest
        refusal = tracker.log_model(store, digest, config.keep.registered_model)
    is_complete = tracker.end(ENDED[status.state], status.beat_s)
    refused = [*tracker.outbox.refused, *([f"the model: {refusal}"] if refusal else [])]
    if not is_complete or refused:
        missing = ", ".join(refused) or f"{len(tracker.outbox.waiting)} entries"
        raise ConnectionError(f"MLflow at {uri} must take all of the run, it lacks {missing}")
    return (
        f"{manifest.run_id}: {len(commits)} steps and its end, {ENDED[status.state]}, are in MLflow"
        f" at {uri}, run {tracker.run_id}"
    )


def _final_status(store: Store, manifest: RunManifest) -> RunStatus:
    status = read_status(store)
    if status is None or status.state == "running":
        goes_on = f"process {status.pid} on {status.host} goes on" if status else "it has no status"
        raise ValueError(
            f"a run must be over before it is tracked anew, {manifest.run_id} is not, as far as is"
            f" known ({goes_on}); wait for its end: it tells MLflow itself"
        )
    return status


def _tracker_of(store: Store, manifest: RunManifest, config: RunConfig, uri: str) -> RunTracker:
    tracker = RunTracker(uri)
    found = tracker.start(
        experiment=config.keep.experiment,
        run_name=manifest.run_id,
        params=manifest.config,
        tags=tags_of(config, manifest.links),
        run_id=manifest.mlflow_run_id,
        git_sha=manifest.git_sha,
    )
    if found != manifest.mlflow_run_id:
        write_manifest(store, replace(manifest, mlflow_run_id=found))
    return tracker


def _send_steps(
    tracker: RunTracker, store: Store, commits: Sequence[StepCommit], config: RunConfig
) -> None:
    for commit in commits:
        tracker.log_step(commit.step, commit.metrics)
    for step in sorted(evaluated_steps(store)):
        report = kept_evaluation(store.child(layout.EVALUATION), step, step)
        if report is not None:
            tracker.log_metrics(step, report.metrics)
    warnings = warnings_of(figures_by_step(commits), config.monitors)
    if warnings:
        tracker.tag(ALARM_TAG, "\n".join(warning.text for warning in warnings))


def _send_report(tracker: RunTracker, store: Store, num_steps: int) -> None:
    figures = read_figures(store)
    if figures is not None:
        tracker.log_state(num_steps, figures.columns)
    for name in store.list(layout.REPORT):
        if name == layout.PAGE or name.endswith(PAGES):
            tracker.log_file(store.read(layout.report_file(name)), layout.report_file(name))
    if store.exists(layout.report_file(SUMMARY)):
        tracker.describe(description(store.read(layout.report_file(SUMMARY)).decode()))


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow track",
        description="Send MLflow everything of a finished run that it lacks.",
        epilog="example: rollflow track tiny-20260102-030405-a1b2c3",
    )
    add_run(made)
    made.add_argument(
        "--tracking-uri",
        default="",
        metavar="URI",
        help="MLflow server or database (default: keep.tracking_uri of the run)",
    )
    return made


@command(parser)
@private_files()
def main(options: Namespace) -> int:
    """Send MLflow what it lacks of the run, wherever its root lies now."""
    TRACKING.check(options.tracking_uri, "--tracking-uri")
    store = run_store(options.run, options.root)
    root = store.url.rpartition("/")[0]
    kept = kept_config(read_manifest(store).config)
    moved = kept.keep.model_copy(update={"artifact_root": root})
    config = kept.model_copy(update={"keep": moved})
    print(track(store, config, options.tracking_uri or config.tracking_uri()))
    return 0
