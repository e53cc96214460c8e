"""A third scheduling policy: one class here and one line in the union is all that a run needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
from plan_factories import CONTEXT, make_report, make_step_plan
from pydantic import BaseModel, ConfigDict, Field
from round_factories import make_engines, simulate_run

from artifacts.commit import StepCommit, commit_step, read_commits
from artifacts.reports import canvas, plots
from artifacts.store import Store
from flows import step_controller as course
from flows.commands.algebra_rows import algebra_rows
from flows.config.run_config import RunConfig
from flows.engine_layout import demand_of
from research.spot.simulated_rounds import SimulatedRound
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.metrics.step_metrics import step_metrics
from tasks.scheduling.batch import BatchAlgebra, BatchConfig, RoundShape
from tasks.scheduling.events import (
    AcceptGroup,
    CloseRound,
    Decision,
    Defer,
    Drop,
    Event,
    RoundPlan,
    RoundScheduler,
)
from tasks.scheduling.groups import GroupProgress
from tasks.scheduling.parallelism import LayoutState, PlannerState, RoundReading, observe
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState
from tests.unit.test_open_run import opened


class InTurnConfig(BaseModel):
    """One prompt at a time; what a step plans beyond its share is put off until the next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["in_turn"] = Field("in_turn", description="One prompt at a time.")
    ahead: int = Field(2, ge=0, description="Prompts that a step plans and puts off.")

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        shape = RoundShape(
            kind="relay",
            launch_prompts=batch.prompts_per_step,
            launch_per_prompt=batch.responses_per_prompt,
            accept_prompts=batch.prompts_per_step,
            accept_per_prompt=batch.responses_per_prompt,
        )
        return BatchAlgebra(rounds=(shape,), reserve_prompts=0, max_drain_steps=1)

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        queued, share = turn.state.queue, turn.batch.prompts_per_step
        if turn.is_after_last and not queued:
            return None
        num_new = 0 if turn.is_after_last else share + self.ahead - len(queued)
        return RoundPlan(
            step=turn.step,
            kind="last leg" if turn.is_after_last else "relay",
            layout="relay",
            prompts=(*queued, *turn.upcoming(num_new)),
            num_queued=len(queued),
            is_drain=turn.is_after_last,
            launch_per_prompt=turn.batch.responses_per_prompt,
            accept_prompts=min(share, len(queued)) if turn.is_after_last else share,
            accept_per_prompt=turn.batch.responses_per_prompt,
        )

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        return InTurn(plan)


class InTurn:
    """Asks the next prompt when the one before has its group; puts off those that are left."""

    def __init__(self, plan: RoundPlan) -> None:
        self._plan = plan
        self._groups = [GroupProgress(ref, plan) for ref in plan.prompts]
        self._num_missing = plan.accept_prompts

    def start(self) -> list[Decision]:
        return [*self._groups[0].launch(self._plan.launch_per_prompt)]

    def handle(self, event: Event) -> list[Decision]:
        group = self._groups[0]
        decisions: list[Decision] = [*group.handle(event)]
        if group.is_complete:
            self._num_missing -= 1
            accepted = group.accepted_indices()
            decisions.append(AcceptGroup(prompt_id=group.ref.prompt_id, indices=accepted))
        elif group.is_hopeless:
            decisions.append(Drop(prompt_id=group.ref.prompt_id))
        else:
            return decisions
        del self._groups[0]
        if self._num_missing and self._groups:
            return [*decisions, *self.start()]
        put_off = [Defer(prompt_id=group.ref.prompt_id) for group in self._groups]
        return [*decisions, *put_off, CloseRound()]

    def waiting_for(self) -> str:
        return f"{self._num_missing} groups are missing"


class WiderConfig(RunConfig):
    """The run's configuration with one more line in the union of policies."""

    scheduling: Annotated[  # type: ignore[assignment]  # wider than what it overrides
        SyncConfig | TailBatchingConfig | InTurnConfig,  # this one
        Field(discriminator="kind"),
    ]


BATCH = BatchConfig(prompts_per_step=3, responses_per_prompt=2)
NUM_STEPS = 4


def configured(**given: object) -> WiderConfig:
    batch = BATCH.model_dump()
    values = {"preset": "tiny", "num_steps": NUM_STEPS, "batch": batch}
    return WiderConfig.model_validate({**values, "scheduling": {"kind": "in_turn"}, **given})


def played() -> list[SimulatedRound]:
    config = configured()
    run = simulate_run(
        config.batch,
        config.scheduling,
        num_steps=config.num_steps,
        engines=make_engines(2),
        domains=("a", "b") * 20,
    )
    return run_virtual(run)


def reports() -> Iterator[tuple[SimulatedRound, StepCommit]]:
    """Every round of a run with what its step commits."""
    run = replace(CONTEXT, scheduling=configured().scheduling)
    for one in played():
        plan = replace(make_step_plan(one.plan.step), run=run, round=one.plan)
        assert isinstance(plan.scheduler(), InTurn)
        report = make_report((), plan=plan)
        commit = StepCommit(
            step=plan.step,
            kind=plan.round.kind,
            weights=report.published.weights,
            queue=one.state.to_json(),
            seeds={},
            counters={},
            metrics=step_metrics(report, one.state, one.result.groups),
            timings={},
            checkpoint=None,
        )
        yield one, commit


def test_every_prompt_that_it_draws_is_trained_once_and_the_queue_ends_empty() -> None:
    rounds = played()
    names = [(one.plan.kind, len(one.result.groups)) for one in rounds]
    assert names == [("relay", 3)] * NUM_STEPS + [("last leg", 2)]
    trained = Counter(group.prompt.prompt_id for one in rounds for group in one.result.groups)
    assert set(trained.values()) == {1}
    last = rounds[-1].state
    assert (last.queue, last.num_drawn, last.num_trained) == ((), 14, 14)
    asked = chain.from_iterable(one.plan.prompts[one.plan.num_queued :] for one in rounds)
    assert [ref.prompt_id for ref in asked] == list(trained), "in the order of the stream"


def test_it_asks_one_prompt_at_a_time() -> None:
    for one in played():
        finished = [response.prompt_id for response in one.result.generated]
        assert [name for place, name in enumerate(finished) if place % 2] == finished[::2]


def test_its_steps_are_reported_committed_and_drawn_under_its_own_names(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    lengths: dict[str, list[int]] = {}
    for one, commit in reports():
        commit_step(store, commit)
        tokens = [len(response.token_ids) for response in one.result.generated]
        lengths.setdefault(commit.kind, []).extend(tokens)
    commits = read_commits(store)
    assert [commit.kind for commit in commits] == ["relay"] * NUM_STEPS + ["last leg"]
    assert [commit.metrics["round/is_long"] for commit in commits] == [0.0] * NUM_STEPS + [1.0]
    assert [commit.metrics["queue/long_prompts"] for commit in commits] == [2.0] * 4 + [0.0]
    steps, kinds = [commit.step for commit in commits], [commit.kind for commit in commits]
    rollout_s = {"rollout": [1.0] * len(steps)}
    for picture in (plots.step_times(steps, kinds, rollout_s), plots.response_lengths(lengths)):
        assert canvas.png(picture).startswith(b"\x89PNG")


def test_a_round_of_it_that_was_begun_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = SimpleNamespace(domains=("add",) * 40, order_seed=int)
    monkeypatch.setattr(course, "dataset_of", lambda run: dataset)
    run = replace(opened(tmp_path, 0), config=configured())
    begun = course.next_round(run, QueueState(), 1, published=0)
    assert begun is not None
    assert begun.plan.kind == "relay"
    later = replace(run, config=configured(num_steps=NUM_STEPS + 1))
    assert course.next_round(later, QueueState(), 1, published=0) == begun


def test_it_is_explained_and_its_engines_are_planned_by_its_own_numbers() -> None:
    config = configured()
    rows = dict(algebra_rows(config))
    assert rows["prompts launched per step"] == "3"
    assert rows["steps"] == "4, and up to 1 more to drain the long-prompt queue"
    assert demand_of(config, "relay").num_responses == 6
    state = PlannerState(layouts={"relay": LayoutState(size=1, preemptions=1)})
    reading = RoundReading(layout="relay", num_preemptions=30, kv_usage_max=0.5)
    assert observe(state, reading, (1, 2), {}).layouts["relay"].size == 2


def test_a_field_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="ahead"):
        configured(scheduling={"kind": "sync", "ahead": 1})
    assert configured(scheduling={"kind": "in_turn", "ahead": 1}).scheduling.kind == "in_turn"
