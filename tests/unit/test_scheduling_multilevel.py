"""Which rounds multilevel batching plays, over what, and in what ratio."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pydantic import ValidationError
from round_factories import plan_round

from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.multilevel import (
    LEVEL_ETA,
    MultilevelBatchingConfig,
    levels_within,
)
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState, RoundEnd, finish_round
from tasks.scheduling.short_round import ShortRoundScheduler
from tasks.scheduling.wait_for_all import WaitForAll

BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=4)
DOMAINS = ("add", "letters") * 500


def play_all(
    policy: MultilevelBatchingConfig | TailBatchingConfig, num_steps: int
) -> tuple[list[RoundPlan], QueueState]:
    """The longest prompts are those with the largest rows."""
    state, plans = QueueState(), []
    while True:
        plan = plan_round(
            state,
            BATCH,
            policy,
            domains=DOMAINS,
            seed=3,
            step=len(plans) + 1,
            num_steps=num_steps,
        )
        if plan is None:
            return plans, state
        names = sorted(rows(plan), key=lambda name: int(name.partition("/")[2]))
        end = RoundEnd(accepted=names[: plan.accept_prompts], deferred=names[plan.accept_prompts :])
        state = finish_round(state, plan, end)
        plans.append(plan)


def rows(plan: RoundPlan) -> list[str]:
    return [ref.prompt_id for ref in plan.prompts]


@pytest.mark.parametrize("num_levels", [2, 3, 4])
@pytest.mark.parametrize("eta", [1.25, 1.5, 2.0])
def test_a_period_has_the_rounds_that_the_algebra_says_and_leaves_nothing(
    eta: float, num_levels: int
) -> None:
    policy = MultilevelBatchingConfig(prompt_overprovision=eta, num_levels=num_levels)
    algebra = policy.algebra(BATCH)
    plans, state = play_all(policy, algebra.period_steps)
    counts = Counter(plan.kind for plan in plans)
    assert counts == {shape.kind: round(shape.frequency) for shape in algebra.rounds}
    assert state.queue == ()
    assert plans[-1].kind == "long"


def test_two_levels_are_tail_batching() -> None:
    two = MultilevelBatchingConfig(prompt_overprovision=1.5, num_levels=2)
    assert play_all(two, 7) == play_all(TailBatchingConfig(prompt_overprovision=1.5), 7)


def test_the_rounds_of_a_level_ask_what_was_deferred_as_often() -> None:
    plans, _ = play_all(MultilevelBatchingConfig(prompt_overprovision=2.0, num_levels=4), 40)
    times_asked: Counter[str] = Counter()
    levels = {"short": 0, "middle-1": 1, "middle-2": 2, "long": 3}
    for plan in plans:
        for name in rows(plan):
            if plan.kind != "drain":
                assert times_asked[name] == levels[plan.kind]
            times_asked[name] += 1


def test_every_prompt_is_trained_once_and_the_longest_last() -> None:
    plans, state = play_all(MultilevelBatchingConfig(prompt_overprovision=2.0), 9)
    trained = Counter(
        name
        for plan in plans
        for name in sorted(rows(plan), key=lambda name: int(name.partition("/")[2]))[
            : plan.accept_prompts
        ]
    )
    assert set(trained.values()) == {1}
    assert len(trained) == state.num_trained == state.num_drawn
    assert (state.queue, state.deferrals) == ((), {})


def test_the_drain_is_within_what_the_algebra_says() -> None:
    policy = MultilevelBatchingConfig(prompt_overprovision=1.5, num_levels=4)
    most = policy.algebra(BATCH).max_drain_steps
    drained = [len(play_all(policy, num_steps)[0]) - num_steps for num_steps in range(1, 60)]
    assert 0 < max(drained) <= most


def test_the_last_level_waits_for_all_and_the_others_choose() -> None:
    policy = MultilevelBatchingConfig(prompt_overprovision=2.0)
    for plan in play_all(policy, 9)[0]:
        chooses = plan.kind in ("short", "middle")
        assert isinstance(policy.scheduler(plan), ShortRoundScheduler if chooses else WaitForAll)
        assert len(plan.prompts) == plan.accept_prompts * (2 if chooses else 1)


def test_an_overprovision_that_comes_to_no_prompt_plays_synchronous_rounds() -> None:
    policy = MultilevelBatchingConfig(prompt_overprovision=1 + 1e-8)
    assert policy.algebra(BATCH).max_drain_steps <= 2
    plans, state = play_all(policy, 3)
    assert [len(plan.prompts) for plan in plans] == [8, 8, 8]
    assert not state.queue


def test_the_same_state_plans_the_same_round_after_json() -> None:
    policy = MultilevelBatchingConfig(prompt_overprovision=1.5, num_levels=3, drain=False)
    _, state = play_all(policy, 6)
    assert set(state.deferrals.values()) == {2}
    assert QueueState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_a_level_more_than_there_can_be_is_refused() -> None:
    with pytest.raises(ValidationError, match="num_levels"):
        MultilevelBatchingConfig(num_levels=1)
    with pytest.raises(ValidationError, match="prompt_overprovision"):
        MultilevelBatchingConfig(prompt_overprovision=1.0)


@pytest.mark.parametrize(
    ("cap_tokens", "levels"),
    [(64, 2), (8192, 2), (11_000, 2), (12_000, 3), (16384, 3), (32768, 4), (1 << 30, 4)],
)
def test_a_higher_bound_gets_a_level_more(cap_tokens: int, levels: int) -> None:
    assert levels_within(cap_tokens) == levels
    MultilevelBatchingConfig(prompt_overprovision=LEVEL_ETA, num_levels=levels)  # is accepted
