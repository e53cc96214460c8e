"""Invariants 1, 7 and 13 (docs/architecture.md) of whole asynchronous runs on simulated engines:
random lengths and training times, failing verdicts, dying engines."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from artifacts.records import Running, response_id
from research.spot.simulated_rounds import (
    OverlappedRun,
    SimulatedLearner,
    SimulatedRound,
    make_engines,
    play_overlapped,
)
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.rounds.figures import ledger_of
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.asynchronous import AsynchronousConfig

# what an engine does with what runs when it loads weights; of a round that pauses nothing runs
AT_UPDATE = {
    "interrupt": Running.INTERRUPT,
    "drain": Running.DRAIN,
    "keep": Running.KEEP,
    "pause": Running.DROP,
}
few = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A simulated run and what goes wrong in it."""

    policy: AsynchronousConfig
    batch: BatchConfig
    num_steps: int
    lengths: LengthModel
    reward: SimulatedRewardConfig
    train_s: float
    leaves_running: bool
    losses_s: tuple[float, ...]  # when engines die; one more than that lives on


# a group that was complete when it was carried, and is carried again before the round hears of it:
# the response whose verdict failed is not asked for between
CARRIED_TWICE = Scenario(
    policy=AsynchronousConfig(async_ratio=1.5),
    batch=BatchConfig(prompts_per_step=3, responses_per_prompt=2),
    num_steps=5,
    lengths=LengthModel(median_tokens=60, sigma=0, seed=5963),
    reward=SimulatedRewardConfig(infra_share=0.1, ok_share=0.5, seed=5963),
    train_s=0.1,
    leaves_running=False,
    losses_s=(),
)
# one that is not complete: the response that replaced another is not asked for between
REPLACED_AND_CARRIED_TWICE = replace(
    CARRIED_TWICE,
    batch=BatchConfig(prompts_per_step=3, responses_per_prompt=3),
    lengths=LengthModel(median_tokens=60, sigma=1, seed=5963),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    seed = draw(st.integers(0, 10_000))
    return Scenario(
        policy=AsynchronousConfig(
            async_ratio=draw(st.sampled_from([0.5, 1, 1.5, 2, 4])),
            extra_lag=draw(st.sampled_from([0, 0, 2])),
            at_deadline=draw(st.sampled_from(["wait", "wait", "park", "drop"])),
            response_overprovision=draw(st.sampled_from([1, 1, 1.5, 2])),
            dynamic_sampling=draw(st.sampled_from([0.0, 0.0, 1.0])),
            at_update=draw(st.sampled_from([*AT_UPDATE])),
        ),
        batch=BatchConfig(
            prompts_per_step=draw(st.integers(1, 5)), responses_per_prompt=draw(st.integers(2, 3))
        ),
        num_steps=draw(st.integers(1, 7)),
        lengths=LengthModel(median_tokens=60, sigma=draw(st.floats(0, 1.5)), seed=seed),
        reward=SimulatedRewardConfig(
            infra_share=draw(st.sampled_from([0.0, 0.0, 0.1])),
            ok_share=draw(st.sampled_from([0.5, 0.9])),
            seed=seed,
        ),
        train_s=draw(st.sampled_from([0.1, 1.0, 5.0])),
        leaves_running=draw(st.booleans()),
        losses_s=tuple(draw(st.lists(st.floats(0, 20), max_size=2))),
    )


def run(scenario: Scenario) -> list[SimulatedRound]:
    async def simulate() -> list[SimulatedRound]:
        config = SimulatedEngineConfig(
            max_batch=4, kv_capacity_tokens=4000, max_model_len=2300, lengths=scenario.lengths
        )
        engines = make_engines(len(scenario.losses_s) + 1, config)
        for engine, lost_s in zip(engines, scenario.losses_s, strict=False):
            asyncio.get_running_loop().call_later(lost_s, engine.fail)
        played = play_overlapped(
            OverlappedRun(
                policy=scenario.policy,
                batch=scenario.batch,
                num_steps=scenario.num_steps,
                domains=("a", "b", "c") * 20,
                engines=engines,
                learner=SimulatedLearner(
                    engines, scenario.train_s, AT_UPDATE[scenario.policy.at_update]
                ),
                feed=lambda: SimulatedFeed(scenario.reward),
                max_response_tokens=2000,
                leaves_running=scenario.leaves_running,
            )
        )
        return [one async for one in played]

    return run_virtual(simulate())


@few
@given(scenarios())
def test_every_prompt_is_decided_once_and_nothing_is_left(scenario: Scenario) -> None:
    rounds = run(scenario)
    decided = Counter(
        prompt
        for one in rounds
        for prompt in (
            *one.result.accepted,
            *one.result.dropped,
            *one.result.filtered,
        )
    )
    assert max(decided.values()) == 1
    last = rounds[-1].state
    assert (last.carried, last.queue, rounds[-1].result.in_flight) == ((), (), ())
    assert last.num_drawn == decided.total() + len(last.skipped)
    for one in rounds:
        assert len(one.result.groups) == one.plan.accept_prompts or one.result.dropped


@few
@given(scenarios())
@example(CARRIED_TWICE)
@example(REPLACED_AND_CARRIED_TWICE)
def test_every_token_is_booked_once_in_the_round_that_decides(scenario: Scenario) -> None:
    rounds = run(scenario)
    whole: Counter[str] = Counter()
    for one in rounds:
        generated = one.result.generated
        booked = sum(ledger_of(one.result, is_evaluation=False).values())
        assert booked == sum(len(response.token_ids) for response in generated)
        whole.update(
            response.response_id for response in generated if response.finish_reason != "aborted"
        )
        later = {response.generated.response_id for response in one.result.carried_responses}
        assert not later & {response.response_id for response in generated}
        scored = {response_id(score.prompt_id, score.index) for score in one.result.scores}
        assert not later & scored
    parked = any(one.result.deferred for one in rounds)
    assert max(whole.values()) == 1 or parked


@few
@given(scenarios())
def test_no_trained_token_is_older_than_the_bound(scenario: Scenario) -> None:
    for one in run(scenario):
        policy = scenario.policy
        oldest = one.plan.step - 1 - math.ceil(policy.async_ratio) - policy.extra_lag
        for group in one.result.groups:
            assert len(group.responses) == one.plan.accept_per_prompt
            for response in group.responses:
                spans = response.generated.versions
                assert sum(span.num_tokens for span in spans) == len(response.generated.token_ids)
                assert all(oldest <= span.version < one.plan.step for span in spans)
                assert len(spans) == 1 or policy.at_update != "drain"
