"""The engines' layout before a round, and what a lost worker does to a step and its checkpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from artifacts.commit import StepCommit
from artifacts.records import Span, WeightsRef
from artifacts.reports.tracking import RunTracker
from artifacts.store import Store
from flows import engine_layout
from flows import step_controller as course
from flows.config.run_config import RunConfig
from flows.engine_layout import EngineLayouts, demand_of, with_relayout
from flows.run import OpenRun
from flows.steps import Planned, StepOrdering, Steps
from tasks.cluster.actors import ActorLost
from tasks.cluster.devices import engine_members
from tasks.metrics.report import StepReport
from tasks.metrics.step_metrics import step_metrics
from tasks.rounds.report import RolloutReport
from tasks.run.run_context import RunContext, StepPlan
from tasks.scheduling.layout_planner import ThroughputPoint, ThroughputProfile
from tasks.scheduling.parallelism import LayoutState, PlannerState
from tasks.scheduling.queue_state import QueueState
from tests.unit.plan_factories import CONTEXT, make_report, make_step_plan, span


class RecordingFleet:
    """The fleet as the planner sees it: it keeps the layouts it was asked for."""

    def __init__(self, run: RunContext) -> None:
        self.run = run
        self.layouts: list[tuple[str, ...]] = []
        self.elastic = SimpleNamespace(workers=(), publish=self._publish)

    async def relayout(self, members: Mapping[str, tuple[str, ...]]) -> None:
        self.run = self.run.with_engines(members)
        self.layouts.append(tuple(members))

    async def open_round(self, key: int, beside: Sequence[int]) -> None:
        assert not beside

    async def _publish(self, *of_a_step: object) -> None:
        """Elastic workers would hear of it."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(
        json.dumps({"num_attention_heads": 4, "num_key_value_heads": 4})
    )
    return str(tmp_path)


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The engines of every publication."""
    calls: list[tuple[str, ...]] = []

    async def publish(run: RunContext) -> None:
        calls.append(run.engines)

    monkeypatch.setattr(engine_layout, "publish", publish)
    return calls


def open_run(model: str, **changes: Any) -> tuple[OpenRun, RecordingFleet]:
    """A run of the tiny preset on two devices with the planner on, and its fleet."""
    config = RunConfig.model_validate({"preset": "tiny", "planner": {"enabled": True}, **changes})
    members = engine_members(config.cluster, config.engine.tensor_parallel_size)
    devices = {
        "control": "host",
        "engine-0": "cpu:0",
        "engine-1": "cpu:1",
        "learner-0": "cpu:0",
        "learner-1": "cpu:1",
    }
    context = replace(CONTEXT, model_path=model, devices=devices).with_engines(members)
    tracker = RunTracker("sqlite://")
    run = OpenRun(
        config=config,
        context=context,
        store=Store.open("memory://layouts"),
        tracker=tracker,
        commits=(),
        links={},
    )
    return run, RecordingFleet(context)


def profile_for_two(path: Path) -> str:
    """Two devices together are much faster than one."""
    points = tuple(
        ThroughputPoint(
            size=size, batch=8, length=64, prefill_tokens_per_s=rate, decode_tokens_per_s=rate
        )
        for size, rate in ((1, 1.0), (2, 99.0))
    )
    file = path / "profile.json"
    file.write_text(
        ThroughputProfile(
            model="m", device="d", kv_tokens={1: 9999, 2: 9999}, points=points
        ).to_json()
    )
    return str(file)


async def test_without_a_planner_no_engine_is_touched(model: str) -> None:
    run, fleet = open_run(model, planner={"enabled": False})
    layouts = EngineLayouts(run)
    assert await layouts.arrange(fleet, "short") == ()  # type: ignore[arg-type]
    assert layouts.observe(make_report(())).to_json() == {}
    assert fleet.layouts == []


async def test_the_first_round_runs_on_the_size_of_the_profile(
    model: str, tmp_path: Path, published: list[tuple[str, ...]]
) -> None:
    run, fleet = open_run(model, planner={"enabled": True, "profile": profile_for_two(tmp_path)})
    layouts = EngineLayouts(run)
    spans = await layouts.arrange(fleet, "short")  # type: ignore[arg-type]
    assert fleet.layouts == published == [("engine-0",)], "the new engines get the weights"
    assert [(one.device, one.kind) for one in spans] == [("cpu:0", "wake"), ("cpu:1", "wake")]
    assert await layouts.arrange(fleet, "short") == (), "nothing happens twice"  # type: ignore[arg-type]


async def test_an_evaluation_takes_the_layout_that_there_is(model: str, tmp_path: Path) -> None:
    run, fleet = open_run(model, planner={"enabled": True, "profile": profile_for_two(tmp_path)})
    asked = make_step_plan(kind="evaluate").round
    assert await EngineLayouts(run).arrange(fleet, asked.layout) == ()  # type: ignore[arg-type]


async def test_rounds_alternate_between_their_layouts(model: str) -> None:
    run, fleet = open_run(model)
    layouts = EngineLayouts(run)
    layouts.state = PlannerState(
        layouts={"short": LayoutState(size=2), "long": LayoutState(size=1)}
    )
    for layout in ("short", "short", "long", "long", "short"):
        await layouts.arrange(fleet, layout)  # type: ignore[arg-type]
    assert fleet.layouts == [("engine-0",), ("engine-0", "engine-1"), ("engine-0",)]


async def test_preemptions_of_a_round_count_for_its_layout(model: str) -> None:
    run, fleet = open_run(model)
    layouts = EngineLayouts(run)
    for preemptions in (2, 30):
        await layouts.arrange(fleet, "short")  # type: ignore[arg-type]
        report = make_report(())
        layouts.observe(
            replace(report, rollout=replace(report.rollout, num_preemptions=preemptions))
        )
    assert layouts.state.to_json() == {"short": {"size": 2, "preemptions": 30, "quiet_rounds": 0}}


async def test_a_jump_doubles_nothing_that_the_profile_knows_to_be_slower(
    model: str, tmp_path: Path
) -> None:
    points = tuple(
        ThroughputPoint(
            size=size, batch=8, length=64, prefill_tokens_per_s=rate, decode_tokens_per_s=rate
        )
        for size, rate in ((1, 10.0), (2, 11.0))
    )
    file = tmp_path / "profile.json"
    file.write_text(
        ThroughputProfile(
            model="m", device="d", kv_tokens={1: 9999, 2: 9999}, points=points
        ).to_json()
    )
    run, fleet = open_run(model, planner={"enabled": True, "profile": str(file)})
    layouts = EngineLayouts(run)
    await layouts.arrange(fleet, "short")  # type: ignore[arg-type]
    for preemptions in (2, 300):
        report = make_report(())
        layouts.observe(
            replace(report, rollout=replace(report.rollout, num_preemptions=preemptions))
        )
    assert layouts.state.layouts["short"].size == 1


def test_a_profile_that_is_not_there_is_refused_before_the_cluster_starts(
    model: str, tmp_path: Path
) -> None:
    run, _ = open_run(model, planner={"enabled": True, "profile": str(tmp_path / "none.json")})
    with pytest.raises(
        ValueError,
        match=(r"planner\.profile must be a readable file.*make one with 'rollflow calibrate'"),
    ):
        EngineLayouts(run)


def test_a_size_that_the_heads_forbid_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"num_attention_heads": 9, "num_key_value_heads": 3})
    )
    run, _ = open_run(str(tmp_path), engine={"tensor_parallel_size": 2})
    with pytest.raises(
        ValueError,
        match=r"engine\.tensor_parallel_size must be one of 1 for the planner \(of 9 heads",
    ):
        EngineLayouts(run)


def test_a_short_round_asks_for_more_than_a_long_one(model: str) -> None:
    run, _ = open_run(model)
    assert demand_of(run.config, "short").num_responses == 160  # 20 prompts x 8 responses
    assert demand_of(run.config, "long").num_responses == 128


def test_rebuilding_is_part_of_the_step_it_delays() -> None:
    wake = Span(device="cpu:0", actor="engine-0", kind="wake", start_s=-4.0, end_s=0.0)
    report = with_relayout(make_report((span("rollout", 0.0, 10.0),)), (wake,))
    metrics = step_metrics(report, QueueState(), ())
    assert (
        metrics["time/step_s"],
        metrics["engine/relayout_s"],
        metrics["time/orchestration_s"],
    ) == (14.0, 4.0, 4.0)
    assert metrics["bubble/sleep_wake_fraction"] == pytest.approx(4 / 14)


class OneStep(course.StepController):
    """The course of a run of one step, which says what it commits."""

    committed: tuple[int, str | None]  # attempt and checkpoint

    def plan(self, state: QueueState, step: int, weights: WeightsRef) -> Planned | None:
        return Planned(before=state, plan=make_step_plan()) if step == 1 else None

    def after(self, before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
        return before

    async def commit(self, report: StepReport, state: QueueState, checkpoint: str | None) -> None:
        self.committed = (report.plan.attempt, checkpoint)


async def test_a_worker_lost_at_the_last_checkpoint_repeats_the_step(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, fleet = open_run(
        model, planner={"enabled": False}, keep={"checkpoint_every_steps": 1}, num_steps=1
    )
    done: list[str] = []
    begin = WeightsRef(version=0, path="", digest="")

    async def step_flow(plan: StepPlan, ordering: StepOrdering | None) -> StepReport:
        assert ordering is None, "it overlaps no other"
        done.append(f"step, attempt {plan.attempt}, weights {plan.weights.version}")
        return make_report((), plan=plan)

    async def begin_checkpoint(context: RunContext, step: int, keep: int) -> asyncio.Task[str]:
        return asyncio.create_task(save())

    async def save() -> str:
        done.append("checkpoint")
        if len(done) == 2:
            raise ActorLost("learner-1 was lost during end_checkpoint")
        return "checkpoints/00001"

    async def recover(run: OpenRun, fleet: object, committed: int) -> WeightsRef:
        done.append(f"recover to step {committed}")
        return replace(begin, version=1)  # the step had been updated

    monkeypatch.setattr(course, "begin_checkpoint", begin_checkpoint)
    monkeypatch.setattr(course, "recover", recover)

    async def evaluate(plan: StepPlan) -> None:
        raise AssertionError("nothing is evaluated")

    one = OneStep(run, fleet, EngineLayouts(run), step_flow, evaluate, reporter=None, records=None)  # type: ignore[arg-type]
    steps = Steps(one, QueueState(), 0, begin)
    assert await steps.play()
    assert not await steps.play()
    assert done == [
        "step, attempt 1, weights 0",
        "checkpoint",
        "recover to step 0",
        "step, attempt 2, weights 0",
        "checkpoint",
    ]
    assert one.committed == (2, "checkpoints/00001")


async def test_a_resumed_run_goes_on_with_the_sizes_it_had(model: str) -> None:
    run, fleet = open_run(model)
    weights = make_report(()).published.weights
    committed = StepCommit(
        step=1, kind="short", weights=weights, queue={}, seeds={}, counters={}, metrics={},
        timings={}, checkpoint=None,
        planner={"short": {"size": 2, "preemptions": 7, "quiet_rounds": 0}},
    )  # fmt: skip
    layouts = EngineLayouts(replace(run, commits=(committed,)))
    await layouts.arrange(fleet, "short")  # type: ignore[arg-type]
    assert fleet.layouts == [("engine-0",)]
    assert layouts.state.layouts["short"].preemptions == 7


def test_a_size_by_lengths_needs_a_profile() -> None:
    given = {"enabled": True, "rule": "lengths"}
    with pytest.raises(ValueError, match=r"planner\.rule 'lengths' needs a measured"):
        RunConfig.model_validate({"preset": "tiny", "planner": given})
    measured = given | {"profile": "profile.json"}
    config = RunConfig.model_validate({"preset": "tiny", "planner": measured})
    assert config.planner.rule == "lengths"
