"""The rollout stage of a step that seeds: with an elastic worker the window closes and the devices
are freed in mid-round, with none the round is the plain one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.records import Group, WeightsRef
from tasks import rollout
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.report import RolloutReport
from tasks.run.run_context import StepPlan, journal_of
from tasks.run.sample_buffer import GROUPED
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.seeding import PlannedWindow
from tasks.scheduling.stream_training import AllAccepted, ScaleDown
from tests.unit.elastic_worker_factories import Door, joined
from tests.unit.test_overlapped_rollout import BATCH, ENGINE, Stage

WINDOW = PlannedWindow(window_s=3.0, workers=frozenset({"spot.g1"}))
FREED = ScaleDown(engines=("engine-0",), learners=("learner-0",))
Trained = list[Group | ScaleDown]  # what training is given, in its order


def step_of(stage: Stage, policy: Policy, window: PlannedWindow | None) -> StepPlan:
    turn = PlanningInputs(
        state=QueueState(),
        batch=BATCH,
        step=1,
        num_steps=9,
        domains=("test",) * 50,
        seed=0,
        published=0,
    )
    planned = policy.plan_round(turn)
    assert planned is not None
    return StepPlan(
        run=replace(stage.plan(QueueState(), 1).run, scheduling=policy),
        round=planned,
        weights=WeightsRef(version=0, path="", digest=""),
        attempt=1,
        window=window,
    )


def played(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    window: PlannedWindow | None,
    *elastic_workers: SimulatedEngine,
    policy: Policy | None = None,
) -> tuple[StepPlan, RolloutReport, Trained]:
    async def play() -> tuple[StepPlan, RolloutReport, Trained]:
        door = Door(*map(joined, elastic_workers))
        monkeypatch.setattr(rollout, "workers_of_round", lambda run, stream, asker: door)
        stage = Stage(root, monkeypatch)
        plan = step_of(stage, policy or SyncConfig(), window)
        report = await stage.play(plan)
        stream = stage.stream(plan)
        trained, _ = await stream.take(GROUPED, max_items=99)
        assert trained.pop() == AllAccepted()
        return plan, report, list(trained)

    return run_virtual(play())


@pytest.mark.parametrize("policy", [SyncConfig(), TailBatchingConfig()], ids=lambda each: each.kind)
def test_the_window_closes_and_the_devices_train_while_the_elastic_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    elastic_worker = SimulatedEngine("spot.g1", ENGINE)
    plan, report, trained = played(tmp_path, monkeypatch, WINDOW, elastic_worker, policy=policy)
    assert report.window is not None
    assert report.window.closed_s == pytest.approx(3.0, abs=0.2)
    assert not report.window.is_early
    assert report.window.freed_s[0] >= report.window.closed_s
    assert report.freed == ("learner-0",)
    assert trained.count(FREED) == 1
    assert trained.index(FREED) < len(trained) - 1, "before the last groups"
    groups = journal_of(plan).read_groups(1)
    assert len(groups) == len(trained) - 1 == BATCH.prompts_per_step
    assert {len(group.responses) for group in groups} == {BATCH.responses_per_prompt}
    assert any(span.actor == "spot.g1" and span.end_s > 3.5 for span in report.spans)


def test_a_window_without_a_length_closes_when_there_is_nothing_left_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic_worker = SimulatedEngine("spot.g1", ENGINE)
    unknown = replace(WINDOW, window_s=None)
    _, report, _ = played(tmp_path, monkeypatch, unknown, elastic_worker)
    assert report.window is not None
    assert report.window.closed_s is None or report.window.is_early


def test_without_an_elastic_worker_the_round_is_the_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = replace(WINDOW, workers=frozenset())
    _, report, trained = played(tmp_path / "alone", monkeypatch, alone)
    _, plain, trained_plainly = played(tmp_path / "plain", monkeypatch, None)
    assert report.window is not None
    assert report.window.closed_s is None
    assert report.window.own_s == report.window.took_s > 3.0
    assert replace(report, window=None) == plain
    assert trained == trained_plainly
