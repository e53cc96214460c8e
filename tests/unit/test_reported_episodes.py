"""A run with episodes tells of them: figures in the commit of a step, transcripts in Prefect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plan_factories import make_report
from report_factories import keep_answers, make_commit, make_evaluation, make_row, make_run
from transcript_factories import LOST, WON, make_episode_row

from artifacts.commit import StepCommit
from artifacts.journal import Journal
from artifacts.records import Fate, Group, Outcome
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows import reporter
from flows.reporter import RunReporter
from flows.run import OpenRun
from flows.step_controller import StepCommitter
from tasks.elastic.worker_history import WorkerHistory
from tasks.scheduling.parallelism import PlannerState
from tasks.scheduling.queue_state import QueueState

BEFORE = make_episode_row("heldout/0", LOST, Outcome.WRONG)
AFTER = make_episode_row("heldout/0", WON)


@pytest.fixture
def artifacts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """What Prefect is given, by key; what MLflow is given goes to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    made: dict[str, str] = {}

    async def kept(text: str, *, key: str, description: str) -> None:
        made[key] = text

    monkeypatch.setattr(reporter, "get_client", lambda: None)
    monkeypatch.setattr(reporter, "acreate_markdown_artifact", kept)
    return made


def evaluated(run: OpenRun, before: ResponseRow, after: ResponseRow) -> RunReporter:
    """Tells of a run that was evaluated before its first step and after its last."""
    keep_answers(run, 0, before)
    keep_answers(run, 1, after)
    teller = RunReporter(run, WorkerHistory(run.store, tuple))
    scores = {"heldout/0": 1.0}
    teller._evaluations = {0: make_evaluation(scores), 1: make_evaluation(scores, version=1)}
    return teller


async def test_a_finished_run_shows_heldout_episodes_in_prefect(artifacts: dict[str, str]) -> None:
    run = make_run(Store.open("memory://told-episodes"), make_commit(1))
    await evaluated(run, BEFORE, AFTER).finish("model")
    (text,) = [text for key, text in artifacts.items() if key.startswith("episodes-")]
    assert "| success | 0.0% | 100.0% |" in text
    assert text.index("90") < text.index("**after**") < text.index("15")


async def test_a_run_without_episodes_shows_none(artifacts: dict[str, str]) -> None:
    run = make_run(Store.open("memory://told-answers"), make_commit(1))
    row = make_row("heldout/0", "3", 1.0)
    await evaluated(run, row, row).finish("model")
    assert [key.partition("-")[0] for key in artifacts] == ["summary"]


def committed(root: str, rows: list[ResponseRow], group: Group) -> StepCommit:
    run = make_run(Store.open(root))
    Journal(run.store).finalise(1, rows, (group,), ())
    report = make_report(())
    report = replace(report, rollout=replace(report.rollout, accepted=("0/1",)))
    records = StepCommitter(run, WorkerHistory(run.store, tuple))
    return records.record(report, QueueState(), PlannerState(), None, None)


def test_a_commit_has_the_figures_of_its_episodes(artifacts: dict[str, str]) -> None:
    rows = [
        make_episode_row("0/1", WON, fate=Fate.TRAINED),
        make_episode_row("0/1", LOST, Outcome.WRONG, index=1, fate=Fate.DISCARDED),
    ]
    group = Group(prompt=rows[0].prompt, responses=(rows[0].response,))
    metrics = committed("memory://told-figures", rows, group).metrics
    assert metrics["episode/turns_mean"] == 2.5
    assert metrics["episode/trained_turns_share"] == 0.8
    assert metrics["reward/guess_mean"] == 1.0


def test_a_commit_without_episodes_has_no_such_figures(artifacts: dict[str, str]) -> None:
    row = replace(make_row("0/1", "3", 1.0), fate=Fate.TRAINED)
    group = Group(prompt=row.prompt, responses=(row.response,))
    metrics = committed("memory://told-nothing", [row], group).metrics
    assert not [name for name in metrics if name.startswith("episode/")]
