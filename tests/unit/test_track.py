"""`rollflow track`: what MLflow missed of a run comes from the run's folder, once, with how it
ended."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from plan_factories import CONTEXT, make_report
from report_factories import keep_answers, make_commit, make_evaluation, make_row, make_run

from artifacts import layout
from artifacts.commit import commit_step, read_manifest
from artifacts.reports.figures import figures_of, write_figures
from artifacts.reports.mlflow_client import open_client
from artifacts.reports.summary import markdown
from artifacts.reports.tracking import NOTE_TAG, RunTracker
from artifacts.status import State, own_status, pulse
from artifacts.store import Store
from flows import run as opening
from flows.commands.track import main
from flows.config.run_config import RunConfig
from flows.results import RunResults
from flows.run import OpenRun
from flows.run_record import record_beginning
from tasks.rounds.report import close_round
from tasks.run.run_context import EVALUATION

NUM_STEPS = 14
NOBODY = 4_194_305  # above the largest process id that Linux gives


def configured(root: Path) -> RunConfig:
    keep = {"artifact_root": str(root)}
    return RunConfig.model_validate({"preset": "tiny", "num_steps": NUM_STEPS, "keep": keep})


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a run of 14 steps, of which MLflow has two: it went away then."""
    root = tmp_path_factory.mktemp("runs")
    store = Store.open(str(root)).child("away")
    tracker = record_beginning(configured(root), "away", store, step=0)
    commits = [make_commit(step, reward=step / 100) for step in range(1, NUM_STEPS + 1)]
    for commit in commits:
        commit_step(store, commit)
    for commit in commits[:2]:
        tracker.log_step(commit.step, commit.metrics)
    answered = make_run(Store.open(str(root)).child("elsewhere"))
    for step in (0, NUM_STEPS):
        keep_answers(replace(answered, store=store), step, make_row("heldout/0", "3", 0.5))
        close_round(store.child(EVALUATION), step, make_report(()).rollout)
    write_figures(store, figures_of(NUM_STEPS, commits, {0: 0.5, NUM_STEPS: 0.5}))
    for name, text in (
        ("summary.md", "# away\n\nHeld-out reward 0.1 -> 0.9\n"),
        ("index.html", "<html>"),
    ):
        store.write(layout.report_file(name), text.encode())
    return root


@pytest.fixture
def root(begun: Path, tmp_path: Path) -> Path:
    """A copy, as of runs that were moved to another disk."""
    return Path(shutil.copytree(begun, tmp_path / "moved"))


def end(root: Path, how: State) -> Store:
    store = Store.open(str(root)).child("away")
    errors = {"failed": RuntimeError("it broke"), "interrupted": KeyboardInterrupt()}
    with suppress(RuntimeError, KeyboardInterrupt), pulse(store):
        if how in errors:
            raise errors[how]
    return store


def kill(root: Path) -> None:
    """As `kill -9` leaves it: its last word is that it runs."""
    status = replace(own_status(), pid=NOBODY)
    Store.open(str(root)).child("away").write(layout.STATUS, json.dumps(asdict(status)).encode())


def client_of(root: Path) -> MlflowClient:
    return open_client(f"sqlite:///{root}/mlflow.db")


@pytest.mark.parametrize(
    ("how", "status"),
    [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED"), ("", "KILLED")],
)
def test_mlflow_gets_every_step_and_how_the_run_ended(
    root: Path, how: State, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if how:
        end(root, how)
    else:
        kill(root)
    for _ in range(2):  # once more is harmless
        assert main(["away", "--root", str(root)]) == 0
    assert (
        f"away: {NUM_STEPS} steps and its end, {status}, are in MLflow" in capsys.readouterr().out
    )
    run_id = read_manifest(Store.open(str(root)).child("away")).mlflow_run_id
    assert run_id
    client = client_of(root)
    run = client.get_run(run_id)
    assert run.info.status == status
    assert run.info.end_time
    rewards = client.get_metric_history(run_id, "reward/mean")
    assert [point.value for point in rewards] == [n / 100 for n in range(1, NUM_STEPS + 1)]
    heldout = client.get_metric_history(run_id, "heldout/reward_mean")
    assert [(point.step, point.value) for point in heldout] == [(0, 0.5), (NUM_STEPS, 0.5)]
    assert run.data.metrics["step_s"] == 10.0
    assert run.data.tags[NOTE_TAG].startswith("Held-out reward 0.1 -> 0.9\n")


def test_another_mlflow_gets_the_run_as_a_new_one(root: Path, tmp_path: Path) -> None:
    store = end(root, "finished")
    before = read_manifest(store).mlflow_run_id
    uri = f"sqlite:///{tmp_path}/new.db"
    assert main([str(root / "away"), "--tracking-uri", uri]) == 0
    found = read_manifest(store).mlflow_run_id
    assert found is not None
    assert found != before
    run = open_client(uri).get_run(found)
    assert (run.info.status, run.data.params["num_steps"]) == ("FINISHED", str(NUM_STEPS))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["away"], "a run must be over before it is tracked anew, away is not, as far as"),
        (["nobody"], "RUN must be a run under"),
        (["away", "--tracking-uri", "http://me:secret@h"], "--tracking-uri must hold no "),
    ],
)
def test_a_run_that_goes_on_tells_for_itself(
    root: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pulse(Store.open(str(root)).child("away")):
        assert main([*words, "--root", str(root)]) == 2
    assert told in capsys.readouterr().err


def test_an_mlflow_that_is_still_away_is_one_sentence(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(root, "finished")
    assert main(["away", "--root", str(root), "--tracking-uri", "http://127.0.0.1:9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: MLflow must answer at http://127.0.0.1:9, got ")


class Away(RunTracker):
    """MLflow does not answer."""

    def _connected(self) -> MlflowClient:
        raise ConnectionError("connection refused")


def run_without_mlflow(root: str) -> OpenRun:
    run = replace(
        make_run(Store.open(root), keep={"artifact_root": root}), tracker=Away("http://x")
    )
    run.tracker.log_step(1, {"reward/mean": 1.0})
    return run


def test_summary_and_page_name_the_command_that_sends_what_mlflow_lacks() -> None:
    run = run_without_mlflow("memory://a b")
    evaluations = {0: make_evaluation({"heldout/0": 0.0})}
    results, commits = RunResults(run), [make_commit(1)]
    summary = results.summary(commits, evaluations, {})
    told = (
        "MLflow at http://x did not take 1 entries of this run; 'rollflow track"
        f" {CONTEXT.run_id} --root 'memory://a b'' sends them when it answers"
    )
    assert summary.untracked == told
    assert f"* Warning: {told}" in markdown(summary)


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_the_terminal_names_it_when_the_run_has_ended(
    status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_without_mlflow("memory://ended")
    errors = {"FINISHED": None, "FAILED": ValueError, "KILLED": KeyboardInterrupt}
    play(run, errors[status])
    assert "'rollflow track run --root memory://ended' sends them" in capsys.readouterr().out
    play(replace(run, tracker=Taking("")), errors[status])
    assert capsys.readouterr().out == ""


def play(run: OpenRun, error: type[BaseException] | None) -> None:
    """A tracked block that ends in such an error, or without one."""
    with suppress(ValueError, KeyboardInterrupt), opening._tracked(run):
        if error is not None:
            raise error


class Taking(RunTracker):
    """MLflow takes everything."""

    def end(self, status: object, at_s: float | None = None) -> bool:
        return True
