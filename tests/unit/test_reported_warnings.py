"""An alarm is told where a person looks: terminal, flow log, MLflow's tag, summary and page."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from plan_factories import make_report
from report_factories import make_commit, make_evaluation, make_run

from artifacts.commit import StepCommit
from artifacts.reports.summary import markdown
from artifacts.reports.tracking import RunTracker
from artifacts.store import Store
from flows import reporter
from flows.evaluate import read_answers
from flows.reporter import ALARM_TAG, RunReporter
from flows.results import RunResults
from tasks.elastic.worker_history import WorkerHistory

FIGURE = "train/effective_sample_fraction"
ALARM = f"{FIGURE} was 0.2 in step 3, below 0.5 for 3 steps in a row"
LOG = logging.getLogger("a-flow-run")


def commit_of(step: int, effective: float) -> StepCommit:
    made = make_commit(step)
    figures = {"train/tokens_scored": 50.0, FIGURE: effective, "lag/mean_versions": 1.0}
    return replace(made, metrics={**made.metrics, **figures})


class Tags(RunTracker):
    """Remembers the tags, and has no MLflow."""

    def __init__(self) -> None:
        super().__init__("")
        self.tags: dict[str, str] = {}

    def log_step(self, step: int, metrics: object) -> bool:
        return True

    def tag(self, name: str, text: str) -> bool:
        self.tags[name] = text
        return True


async def test_the_step_that_raises_it_tells_it_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def made(**given: Any) -> None:  # Any: of an artifact that nobody keeps
        pass

    monkeypatch.setattr(reporter, "get_client", lambda: None)
    monkeypatch.setattr(reporter, "get_run_logger", lambda: LOG)
    monkeypatch.setattr(reporter, "acreate_table_artifact", made)
    tags = Tags()
    run = replace(make_run(Store.open("memory://alarm")), tracker=tags)
    teller = RunReporter(run, WorkerHistory(run.store, tuple))
    with caplog.at_level(logging.WARNING):
        for step, effective in enumerate((0.4, 0.3, 0.2, 0.1), 1):
            if step == 3:
                assert not tags.tags
            await teller.report_step(make_report(()), commit_of(step, effective))
            await teller.caught_up()
    told = [record.getMessage() for record in caplog.records if record.name == LOG.name]
    assert len(told) == 1
    assert told[0].startswith(f"step=3 alarm: {ALARM}: ")
    assert tags.tags[ALARM_TAG].startswith(ALARM)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(f"warning: {ALARM}")]
    assert len([line for line in lines if "warning" in line]) == 1


def test_the_summary_and_the_page_have_every_alarm_of_the_run() -> None:
    commits = [commit_of(step, 0.2) for step in (1, 2, 3, 4)]
    run = make_run(Store.open("memory://alarm-page"), *commits)
    results = RunResults(run)
    evaluations = {0: make_evaluation({"heldout/0": 0.0})}
    summary = results.summary(commits, evaluations, {})
    assert [warning.partition(":")[0] for warning in summary.warnings] == [ALARM]
    assert f"* Warning: {ALARM}: " in markdown(summary)
    answers = read_answers(run.store, evaluations)
    pictures = results.pictures(commits, evaluations)
    page = results.page(commits, evaluations, answers, summary, pictures, is_over=True).decode()
    assert f"Warning: {ALARM}: " in page
    assert 'aria-label="Staleness"' in page


def test_a_run_within_its_limits_says_nothing() -> None:
    commits = [commit_of(step, 0.9) for step in (1, 2, 3)]
    run = make_run(Store.open("memory://no-alarm"), *commits)
    summary = RunResults(run).summary(commits, {0: make_evaluation({"heldout/0": 0.0})}, {})
    assert summary.warnings == ()
    assert "Warning" not in markdown(summary)
