"""A run in which nothing is learned says so, with two of its answers, wherever a person looks; its
tokens are not called trained."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner_factories import make_group
from plan_factories import make_report
from record_factories import make_generated
from report_factories import make_commit, make_evaluation, make_run

from artifacts.commit import StepCommit
from artifacts.journal import Journal
from artifacts.records import Fate, Generated, Group
from artifacts.reports.page import LEDGER
from artifacts.reports.summary import markdown
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows import reporter
from flows.reporter import RunReporter
from flows.results import RunResults, no_update_at_all
from flows.run import OpenRun
from tasks.elastic.worker_history import WorkerHistory
from tasks.learner.reports import AccumulateReport, CriticReport, Skipped, update_figures
from tasks.metrics.monitors import StepWarning, nothing_learned
from tasks.metrics.report import StepReport
from tasks.metrics.step_metrics import running_totals, step_metrics
from tasks.scheduling.queue_state import QueueState

Figures = Mapping[str, float]


def report_of(skipped: Skipped | None, **trained: Any) -> StepReport:  # Any: counts of a report
    """A step with this end of its update."""
    report = make_report((), ranks=(AccumulateReport(**trained),))
    update = replace(report.policy.update, skipped=skipped)
    return replace(report, policy=replace(report.policy, update=update))


def figures_of(
    *groups: Group,
    skipped: Skipped | None = Skipped.FLAT,
    filtered: tuple[str, ...] = ("0/3",),
    **trained: Any,  # counts of a report
) -> dict[str, float]:
    """The figures of a step that trained these groups and replaced those filtered."""
    report = report_of(skipped, **trained)
    rollout = replace(report.rollout, filtered=filtered)
    return step_metrics(replace(report, rollout=rollout), QueueState(), groups)


def group(*rewards: float | None, finish_reason: str = "stop") -> Group:
    made = make_group((1,), [(2, 3)] * len(rewards), list(rewards))
    return replace(
        made,
        responses=tuple(
            replace(each, generated=replace(each.generated, finish_reason=finish_reason))
            for each in made.responses
        ),
    )


def told(*steps: Figures) -> list[StepWarning]:
    return list(nothing_learned(list(enumerate(steps, 1)), 3))


FLAT_ONES = {"num_groups": 2, "num_groups_flat": 2}
UPDATED = figures_of(group(0.0, 1.0), skipped=None)


@pytest.mark.parametrize(
    ("figures", "what"),
    [
        (figures_of(group(0.0, 0.0), group(0.0, 0.0)), "every answer got 0"),
        (figures_of(group(0.0, None)), "every answer got 0"),
        (figures_of(group(-1.0, -1.0)), "every answer got -1"),
        (figures_of(group(1.0, 1.0)), "every answer got 1"),
        (figures_of(group(0.5, 0.5), skipped=None), "every answer got 0.5"),
        (figures_of(group(0.0, 0.0, finish_reason="length")), "every answer got 0 and was cut"),
        (figures_of(group(0.0, 0.0), group(1.0, 1.0), **FLAT_ONES), "the answers to each question"),
        (figures_of(group(None), filtered=()), "no answer had a verdict"),
        (figures_of(), "every group was filtered"),
        (
            figures_of(group(0.0, 1.0), skipped=Skipped.EMPTY, num_responses_masked=2),
            "every answer with an advantage was cut",
        ),
        (figures_of(group(0.0, 1.0)), "rewards differed and no token kept a gradient"),
    ],
)
def test_three_flat_steps_in_a_row_are_told_once_by_their_cause(
    figures: dict[str, float], what: str
) -> None:
    assert told(figures, figures, UPDATED, figures, figures) == []
    (found,) = told(UPDATED, *[figures] * 6)
    assert found.step == 4
    assert found.text.startswith(what)
    assert " in 3 steps in a row, up to step 4: " in found.text
    assert len(told(*[figures] * 3, UPDATED, *[figures] * 3)) == 2


@pytest.mark.parametrize(
    "figures",
    [
        UPDATED,
        figures_of(group(0.0, 1.0), skipped=Skipped.NONFINITE),
        figures_of(group(0.0, 1.0), skipped=Skipped.CRITIC_WARMUP),
        {"train/applied": 0.0, "train/skipped_flat": 1.0, "reward/mean": 0.0},  # of an older run
    ],
)
def test_what_is_learned_or_told_elsewhere_is_not_told(figures: dict[str, float]) -> None:
    assert told(*[figures] * 5) == []


@pytest.mark.parametrize("skipped", [None, *Skipped])
def test_tokens_of_a_step_without_an_update_are_not_called_trained(
    skipped: Skipped | None,
) -> None:
    figures = figures_of(group(0.0, 0.0), skipped=skipped)
    columns = {name: value for name, value in figures.items() if name.startswith("ledger/")}
    booked = (columns["ledger/trained_tokens"], columns["ledger/no_update_tokens"])
    assert booked == ((20.0, 0.0) if skipped is None else (0.0, 20.0))
    assert sum(columns.values()) == 24.0
    assert {*LEDGER} == {*Fate, "no_update"}
    totals = running_totals({"tokens_trained": 5}, figures, QueueState())  # of an older version
    assert (totals["tokens_trained"], totals["tokens_no_update"]) == (5 + booked[0], booked[1])


def test_a_critic_that_learned_has_trained_on_the_tokens() -> None:
    report = report_of(Skipped.CRITIC_WARMUP)
    critic = CriticReport(loss=1.0, grad_norm=1.0, num_skipped=0, explained_variance=0.0)
    update = replace(report.policy.update, critic=critic)
    assert replace(report, policy=replace(report.policy, update=update)).ledger["trained"] == 20
    assert update_figures(update)["train/applied"] == 0


def answer(prompt_id: str, index: int) -> Generated:
    return make_generated(prompt_id=prompt_id, index=index, text=f"It is\n{index}\x1b[2J.")


def flat_commits() -> list[StepCommit]:
    """Of steps in which every answer got 0."""
    flat = figures_of(group(0.0, 0.0))
    made = [make_commit(step) for step in (1, 2, 3, 4)]
    return [replace(commit, metrics={**commit.metrics, **flat}) for commit in made]


def keep_answers(run: OpenRun) -> None:
    """Record three answers of every step."""
    for step in (1, 2, 3, 4):
        name = f"{step}/0"
        answers = make_group((1,), [(2,), (3,), (4,)], [0.0] * 3, name)
        rows = [
            ResponseRow(
                step=step,
                kind="short",
                prompt=answers.prompt,
                response=replace(each, generated=answer(name, number)),
            )
            for number, each in enumerate(answers.responses)
        ]
        Journal(run.store).finalise(step, rows, (), ())


TOLD = "every answer got 0 in 3 steps in a row, up to step 3: is the reward right?"


async def test_it_is_told_in_terminal_log_and_tag_with_two_answers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def made(**given: Any) -> None:  # Any: of an artifact that nobody keeps
        pass

    log = logging.getLogger("a-flat-run")
    monkeypatch.setattr(reporter, "get_client", lambda: None)
    monkeypatch.setattr(reporter, "get_run_logger", lambda: log)
    monkeypatch.setattr(reporter, "acreate_table_artifact", made)
    run = make_run(Store.open(str(tmp_path)))
    keep_answers(run)
    teller = RunReporter(run, WorkerHistory(run.store, tuple))
    with caplog.at_level(logging.WARNING):
        for commit in flat_commits():
            await teller.report_step(make_report(()), commit)
        await teller.caught_up()
    logged = [record.getMessage() for record in caplog.records if record.name == log.name]
    alarms = [line for line in logged if "alarm" in line]
    assert len(alarms) == 1
    assert alarms[0].startswith(f"step=3 alarm: {TOLD}")
    assert alarms[0].endswith(r'; answers of that step: "It is 0\x1b[2J.", "It is 1\x1b[2J."')
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith(f"warning: {TOLD}")]) == 1


def test_it_is_told_in_the_summary() -> None:
    commits = flat_commits()
    run = make_run(Store.open("memory://nothing-learned-page"), *commits)
    keep_answers(run)
    summary = RunResults(run).summary(commits, {0: make_evaluation({"heldout/0": 0.0})}, {})
    (warning,) = summary.warnings
    told = "No step made an update: every answer got 0 (is the reward right?)"
    shown = ", ".join(rf'"It is {answer}\x1b[2J."' for answer in range(3))
    assert warning == f"{told}. Look at some of them: {shown}"
    assert f"* Warning: {told}" in markdown(summary)
    assert "| no_update | 80 |" in markdown(summary)


def test_a_run_with_an_update_is_told_nothing_of_the_kind(tmp_path: Path) -> None:
    flat = figures_of(group(0.0, 0.0), group(0.0, 0.0))
    made = [replace(make_commit(step), metrics=flat) for step in (1, 2)]
    run = make_run(Store.open(str(tmp_path)), *made)
    assert no_update_at_all(made, Journal(run.store)).endswith('. Look at some of them: "3"')
    learned = (*made, replace(make_commit(3), metrics=UPDATED))
    assert no_update_at_all(learned, Journal(run.store)) == ""
    assert no_update_at_all((), Journal(run.store)) == ""
