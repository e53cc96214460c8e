"""What a run does with its steps: where it waits, what it goes on with after a loss, and what a
commit keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plan_factories import CONTEXT, make_report, make_step_plan
from report_factories import make_commit

from artifacts import layout
from artifacts.commit import StepCommit, read_commits
from artifacts.records import WeightsRef
from artifacts.reports.tracking import RunTracker
from artifacts.store import Store, StoreError
from flows import step_controller as course
from flows.config.run_config import RunConfig
from flows.run import OpenRun
from flows.step_controller import StepController
from tasks.learner.reports import GradientsNotFinite
from tasks.run import prompts
from tasks.run.run_context import StepPlan
from tasks.scheduling.parallelism import PlannerState
from tasks.scheduling.queue_state import QueueState

COMMITTED, HELD = (WeightsRef(version=version, path="", digest="") for version in (2, 3))


def course_of(
    root: Path, preset: str, reporter: object = None, records: object = None, **values: object
) -> tuple[OpenRun, StepController]:
    """A run of six steps and its course, which evaluates after every fourth."""
    config = RunConfig.model_validate(
        {"preset": preset, "num_steps": 6, "evaluation": {"every_steps": 4}} | values
    )
    store = Store.open(str(root)).child("run")
    tracker = RunTracker("")
    run = OpenRun(
        config=config, context=CONTEXT, store=store, tracker=tracker, commits=(), links={}
    )
    layouts: Any = SimpleNamespace(observe=lambda report: PlannerState())
    fleet: Any = SimpleNamespace(run=CONTEXT, elastic=SimpleNamespace(workers=()))

    async def evaluate(plan: StepPlan) -> StepPlan:
        return plan

    step_flow: Any = None
    return run, StepController(run, fleet, layouts, step_flow, evaluate, reporter, records)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("preset", "barriers", "evaluated"),
    [("tiny-sync", [1, 2, 3, 4, 5, 6, 7], []), ("tiny-async", [6, 7], [2, 4])],
)
async def test_steps_that_overlap_wait_for_the_end_and_go_on_beside_evaluations(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    barriers: list[int],
    evaluated: list[int],
) -> None:
    """An evaluation after every other of six steps; that after the last is not beside any."""
    asked = SimpleNamespace(heldout=[SimpleNamespace(domain="add")] * 100)
    monkeypatch.setattr(prompts, "dataset_of", lambda run: asked)
    told: list[tuple[int, StepPlan]] = []

    async def report_evaluation(*report: Any) -> None:  # Any: a step and its report
        told.append(report)

    reporter = SimpleNamespace(report_evaluation=report_evaluation)
    _, made = course_of(tmp_path, preset, reporter, evaluation={"every_steps": 2})
    assert [step for step in range(1, 8) if made.is_barrier(step)] == barriers
    plans = [plan for step in range(1, 8) if (plan := made.evaluation(step, HELD))]
    assert [plan.step for plan in plans] == evaluated
    for plan in plans:
        await made.evaluate(plan)
        assert told[-1] == (plan.step, plan)
        assert plan.is_evaluation
        assert plan.versions == range(HELD.version, HELD.version + 1), "no other weights count"


@pytest.mark.parametrize(("preset", "expected"), [("tiny-sync", COMMITTED), ("tiny-async", HELD)])
async def test_after_a_loss_a_step_that_overlaps_none_keeps_the_weights_it_was_asked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, expected: WeightsRef
) -> None:
    """Step 3 was updated before it was lost: its tokens are of version 2, and read back."""

    async def recover(run: OpenRun, fleet: object, committed: int) -> WeightsRef:
        assert committed == 2
        return HELD

    monkeypatch.setattr(course, "recover", recover)
    _, made = course_of(tmp_path, preset)
    assert await made.recover(2, COMMITTED) == expected


def test_a_step_is_planned_with_the_weights_that_engines_hold_and_planned_alike_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = SimpleNamespace(domains=("add",) * 100, order_seed=int)
    monkeypatch.setattr(course, "dataset_of", lambda run: dataset)
    _, made = course_of(tmp_path, "tiny-sync")
    planned = made.plan(QueueState(), 1, COMMITTED)
    assert planned is not None
    assert (planned.before, planned.plan.step, planned.plan.weights) == (
        QueueState(),
        1,
        COMMITTED,
    )
    assert made.plan(replace(QueueState(), num_drawn=50), 1, COMMITTED) == planned
    assert made.plan(QueueState(), 7, COMMITTED) is None


class Reporter:
    """Keeps the steps that it is told."""

    last = None
    figures = ({"train/nonfinite_tokens": 9.0},)

    def __init__(self) -> None:
        self.told: list[int] = []

    async def report_step(self, report: object, record: StepCommit) -> None:
        self.told.append(record.step)


async def test_a_step_is_not_committed_into_a_folder_that_another_attempt_took(
    tmp_path: Path,
) -> None:
    records = SimpleNamespace(record=lambda *_: make_commit(1))
    run, made = course_of(tmp_path, "tiny-sync", Reporter(), records)
    run.store.write(layout.MANIFEST, b"of another attempt")
    made.run = replace(run, context=replace(run.context, manifest_digest="of this attempt"))
    with pytest.raises(StoreError, match="is of another attempt or run"):
        await made.commit(make_report((), plan=make_step_plan()), QueueState(), None)
    assert not read_commits(run.store)


async def test_a_step_is_committed_and_told_before_its_gradients_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_updates(figures: object, most: int) -> None:
        assert figures == Reporter.figures
        raise GradientsNotFinite("nothing was learned")

    monkeypatch.setattr(course, "check_updates", check_updates)
    reporter = Reporter()
    records = SimpleNamespace(record=lambda *_: make_commit(1))
    run, made = course_of(tmp_path, "tiny-sync", reporter, records)
    with pytest.raises(GradientsNotFinite):
        await made.commit(make_report((), plan=make_step_plan()), QueueState(), None)
    assert [commit.step for commit in read_commits(run.store)] == reporter.told == [1]
