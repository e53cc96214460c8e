"""Which rounds a run plays, and the prompt stream behind them."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError
from round_factories import plan_round

from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef, RoundPlan
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.prompt_stream import draw_prompts
from tasks.scheduling.queue_state import Carried, QueueState, RoundEnd, finish_round
from tasks.scheduling.staleness import Dispatched

BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=4)
TAIL = TailBatchingConfig(response_overprovision=1.25)
DOMAINS = ("add", "letters") * 50


def plan(
    state: QueueState, step: int, num_steps: int, scheduling: Policy = TAIL
) -> RoundPlan | None:
    return plan_round(
        state, BATCH, scheduling, domains=DOMAINS, seed=3, step=step, num_steps=num_steps
    )


def finish(state: QueueState, round_plan: RoundPlan) -> QueueState:
    """The round as if its first prompts had been the quick ones."""
    names = [ref.prompt_id for ref in round_plan.prompts]
    accepted, deferred = names[: round_plan.accept_prompts], names[round_plan.accept_prompts :]
    return finish_round(state, round_plan, RoundEnd(accepted=accepted, deferred=deferred))


def play_all(num_steps: int, scheduling: Policy = TAIL) -> tuple[list[RoundPlan], QueueState]:
    state, plans = QueueState(), []
    while (round_plan := plan(state, len(plans) + 1, num_steps, scheduling)) is not None:
        plans.append(round_plan)
        state = finish(state, round_plan)
    return plans, state


def test_each_epoch_asks_every_row_once_in_an_order_of_its_own() -> None:
    names = [ref.prompt_id for ref in draw_prompts(DOMAINS, 0, 0, 200)]
    first, second = (
        [name.split("/")[1] for name in names[:100]],
        [name.split("/")[1] for name in names[100:]],
    )
    assert sorted(first, key=int) == sorted(second, key=int) == [str(row) for row in range(100)]
    assert first != second
    assert len(set(names)) == 200


def test_drawing_in_pieces_gives_the_same_stream() -> None:
    whole = draw_prompts(DOMAINS, 5, 0, 150)
    assert draw_prompts(DOMAINS, 5, 0, 90) + draw_prompts(DOMAINS, 5, 90, 60) == whole
    assert draw_prompts(DOMAINS, 6, 0, 150) != whole


def test_a_prompt_carries_the_domain_of_its_row() -> None:
    assert all(
        ref.domain == DOMAINS[int(ref.prompt_id.split("/")[1])]
        for ref in draw_prompts(DOMAINS, 0, 0, 100)
    )


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 row"):
        draw_prompts((), 0, 0, 1)


def test_a_short_round_launches_more_than_it_accepts() -> None:
    round_plan = plan(QueueState(), 1, 10)
    assert round_plan is not None
    assert (round_plan.kind, len(round_plan.prompts), round_plan.launch_per_prompt) == (
        "short",
        10,
        5,
    )
    assert (round_plan.accept_prompts, round_plan.accept_per_prompt) == (8, 4)
    assert (
        sum(quota.least for quota in round_plan.quotas)
        <= 8
        <= sum(quota.most for quota in round_plan.quotas)
    )


def test_four_short_rounds_then_a_long_one() -> None:
    plans, _ = play_all(15)
    assert [one.kind for one in plans] == (["short"] * 4 + ["long"]) * 3


def test_a_long_round_takes_the_head_of_the_queue_without_speculation() -> None:
    queue = tuple(PromptRef(prompt_id=f"0/{row}", domain="add") for row in range(9))
    round_plan = plan(QueueState(queue=queue, num_drawn=50), 6, 10)
    assert round_plan is not None
    assert (round_plan.kind, round_plan.prompts, round_plan.quotas) == ("long", queue[:8], ())
    assert (round_plan.launch_per_prompt, round_plan.accept_prompts) == (4, 8)
    assert finish(QueueState(queue=queue, num_drawn=50), round_plan).queue == queue[8:]


def test_the_drain_trains_the_rest_of_the_queue_after_the_last_step() -> None:
    plans, state = play_all(7)
    assert [one.kind for one in plans[5:]] == ["short", "short", "drain"]
    assert (plans[-1].step, plans[-1].accept_prompts) == (8, 4)
    assert state.queue == ()
    assert state.num_trained == state.num_drawn


def test_a_drain_of_more_than_one_round_splits_evenly() -> None:
    queue = tuple(PromptRef(prompt_id=f"0/{row}", domain="add") for row in range(9))
    first = plan(QueueState(queue=queue), 11, 10)
    assert first is not None
    second = plan(finish(QueueState(queue=queue), first), 12, 10)
    assert second is not None
    assert (first.accept_prompts, second.accept_prompts) == (5, 4)


def test_without_drain_the_run_ends_with_its_last_step() -> None:
    plans, state = play_all(3, TailBatchingConfig(drain=False))
    assert len(plans) == 3
    assert len(state.queue) == 6


def test_synchronous_steps_defer_nothing() -> None:
    plans, state = play_all(5, SyncConfig())
    assert [one.kind for one in plans] == ["sync"] * 5
    assert state == QueueState(num_drawn=40, num_trained=40)


def test_the_same_state_plans_the_same_round_after_json() -> None:
    plans, _ = play_all(3)
    state = finish(QueueState(), plans[0])
    again = QueueState.from_json(json.loads(json.dumps(state.to_json())))
    assert again == state
    assert plan(again, 2, 3) == plan(state, 2, 3) == plans[1]


def test_a_round_must_account_for_all_of_its_prompts() -> None:
    round_plan = plan(QueueState(), 1, 1)
    assert round_plan is not None
    with pytest.raises(ValueError, match="account for each of its 10 prompts once"):
        finish_round(QueueState(), round_plan, RoundEnd(accepted=["0/1"]))


def test_overprovisioned_counts_are_rounded_up_without_float_noise() -> None:
    policy = TailBatchingConfig(prompt_overprovision=1.1, response_overprovision=1.25)
    algebra = policy.algebra(BatchConfig(prompts_per_step=10, responses_per_prompt=10))
    short, long = algebra.rounds
    assert (short.launch_prompts, short.launch_per_prompt, short.frequency) == (11, 13, 10)
    assert (long.launch_prompts, long.launch_per_prompt, long.frequency) == (10, 10, 1)
    assert algebra.period_steps == 11


def test_a_round_that_defers_nothing_has_no_long_one_and_no_drain() -> None:
    policy = TailBatchingConfig(prompt_overprovision=1, response_overprovision=1.25)
    algebra = policy.algebra(BatchConfig(prompts_per_step=10, responses_per_prompt=10))
    assert [shape.kind for shape in algebra.rounds] == ["short"]
    assert (algebra.period_steps, algebra.max_drain_steps) == (1, 0)


def test_tail_batching_without_speculation_is_refused() -> None:
    with pytest.raises(ValidationError, match="use kind 'sync'"):
        TailBatchingConfig(prompt_overprovision=1, response_overprovision=1)


def test_a_dataset_smaller_than_a_round_is_refused() -> None:
    with pytest.raises(ValueError, match=r"as many rows as a round launches prompts \(10\), got 9"):
        plan_round(QueueState(), BATCH, TAIL, domains=DOMAINS[:9], seed=0, step=1, num_steps=1)


def test_a_run_that_now_ends_sooner_trains_what_its_last_round_left_undecided() -> None:
    """Resumed with two steps instead of six: twelve prompts were under way, three are parked."""
    upcoming = draw_prompts(DOMAINS, 3, 0, 31)
    carried = tuple(Carried(ref=ref, dispatched=Dispatched(version=1)) for ref in upcoming[16:28])
    state = QueueState(queue=upcoming[28:], carried=carried, num_drawn=31, num_trained=16)
    policy = AsynchronousConfig(at_deadline="park")
    trained: list[str] = []
    for step in (3, 4):
        round_plan = plan(state, step, 2, policy)
        assert round_plan is not None
        assert round_plan.is_drain
        trained += [ref.prompt_id for ref in round_plan.prompts]
        state = finish(state, round_plan)
    assert plan(state, 5, 2, policy) is None
    assert trained == [ref.prompt_id for ref in upcoming[16:]]
    assert (state.queue, state.carried, state.num_drawn, state.num_trained) == ((), (), 31, 31)
