"""Slow environments in virtual time: what a call takes, turns in lock step, and what becomes of
every episode that is begun."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.episodes import Ending
from artifacts.records import response_id
from benchmarks.environment_latency import (
    CONDITIONS,
    LINES,
    LOCK_STEP,
    OWN_PACE,
    RedundantGroups,
    speedups,
    step_s,
)
from benchmarks.episode_rounds import EpisodeRun, Fate, PlayedRun, fates_of, outcome, simulate
from benchmarks.slow_environments import Conditions, LockStep, Played, SlowHosts
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import Policy, Turn
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState

FAILING = Conditions(slow_share=0.05, hang_share=0.1, crash_share=0.1)
BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=2)
POLICIES: tuple[Policy, ...] = (
    SyncConfig(),
    TailBatchingConfig(),
    TailBatchingConfig(prompt_overprovision=1.0, response_overprovision=1.5),
    RedundantGroups(TailBatchingConfig(prompt_overprovision=1.5)),
    AsynchronousConfig(async_ratio=1.0),
)


def played(policy: Policy = POLICIES[0], **changes: object) -> PlayedRun:
    """A small run of two steps under failing conditions."""
    run = EpisodeRun(policy=policy, conditions=FAILING, batch=BATCH, num_steps=2)
    return run_virtual(simulate(replace(run, **changes)))  # type: ignore[arg-type]


# --- what a call takes -------------------------------------------------------------------------


def test_latencies_are_a_function_of_seed_and_turn_alone() -> None:
    conditions = Conditions(slow_share=0.5)
    calls = [(seed, turn) for seed in range(20) for turn in range(5)]
    forwards = {call: conditions.latency_s(*call) for call in calls}
    backwards = {call: conditions.latency_s(*call) for call in reversed(calls)}
    assert forwards == backwards
    assert len({value for value in forwards.values() if value}) == sum(
        value > 0 for value in forwards.values()
    )


def test_an_episode_meets_the_same_whoever_plays_beside_it_and_at_whatever_pace() -> None:
    """Every call that both runs make takes as long in both; the one that is alone differs only in
    who else is there."""

    def met(run: PlayedRun) -> dict[str, tuple[int, int, float]]:
        return {
            each.episode_id: (each.num_turns, each.turn, round(each.busy_s, 6))
            for each in run.episodes
        }

    apart, together = met(played()), met(played(is_lock_step=True))
    assert apart == together
    fewer = met(played(batch=BatchConfig(prompts_per_step=2, responses_per_prompt=2)))
    shared = fewer.keys() & apart.keys()
    assert len(shared) >= 4
    assert all(fewer[name] == apart[name] for name in shared)


def test_the_stated_shares_are_slow_never_return_and_crash() -> None:
    conditions = Conditions(slow_share=0.05, hang_share=0.02, crash_share=0.02)
    plain = Conditions()
    seeds = range(4000)
    ratios = [
        round(conditions.latency_s(seed, 1) / plain.latency_s(seed, 1), 6)
        for seed in seeds
        if plain.latency_s(seed, 1)
    ]
    assert set(ratios) == {1.0, 10.0}
    assert ratios.count(10.0) / len(ratios) == pytest.approx(0.05, abs=0.015)
    failures = [failure for seed in seeds if (failure := conditions.failure(seed, 6))]
    share = Counter(ending for ending, _ in failures)
    assert share[Ending.UNANSWERED] / len(seeds) == pytest.approx(0.02, abs=0.008)
    assert share[Ending.CRASHED] / len(seeds) == pytest.approx(0.02, abs=0.008)
    assert {turn for _, turn in failures} == {1, 2, 3, 4, 5, 6}


async def step_on(hosts: SlowHosts, episode_id: str) -> None:
    """Steps to the end of the episode."""
    while not (await hosts.step(episode_id, "")).terminated:
        pass


def test_what_never_returns_is_given_up_at_the_limit() -> None:
    conditions = Conditions(mean_s=1.0, deviation_s=0.0, hang_share=1.0, limit_s=7.0)

    async def play() -> tuple[float, Ending]:
        hosts = SlowHosts(conditions)
        await hosts.reset("0/1:0", EnvironmentSettings(), 5)
        with pytest.raises(EnvironmentFailed) as failed:
            await step_on(hosts, "0/1:0")
        (episode,) = hosts.played
        assert episode.busy_s == episode.turn + 7.0  # the reset, the turns before, the limit
        return asyncio.get_running_loop().time(), failed.value.ending

    seconds, ending = run_virtual(play())
    assert ending is Ending.UNANSWERED
    assert seconds >= 8.0


# --- turns in lock step ------------------------------------------------------------------------


async def turn(lock_step: LockStep, name: str, acts_s: float, answers_s: float) -> float:
    """When the turn of an episode is over that acts and is answered after these times."""
    await asyncio.sleep(acts_s)
    await lock_step.begin(name)
    await asyncio.sleep(answers_s)
    await lock_step.finish(name)
    return asyncio.get_running_loop().time()


def test_a_turn_waits_for_the_slowest_action_and_then_for_the_slowest_environment() -> None:
    async def play() -> list[float]:
        lock_step = LockStep()
        names = "abc"
        await asyncio.gather(*(turn(lock_step, name, 0.0, 1.0) for name in names))
        turns = zip(names, (1.0, 2.0, 3.0), (5.0, 1.0, 4.0), strict=True)
        return await asyncio.gather(*(turn(lock_step, *each) for each in turns))

    assert run_virtual(play()) == [1 + 3 + 5] * 3


def test_nobody_waits_for_an_episode_that_is_over() -> None:
    async def play() -> list[float]:
        lock_step = LockStep()
        await asyncio.gather(*(turn(lock_step, name, 0.0, 1.0) for name in "abc"))
        others = asyncio.gather(*(turn(lock_step, name, 0.0, 1.0) for name in "ab"))
        await asyncio.sleep(2.0)  # c has not acted yet
        lock_step.leave("c")
        return await others

    assert run_virtual(play()) == [1 + 2 + 1] * 2


def test_an_episode_that_begins_later_waits_for_the_next_turn() -> None:
    async def play() -> list[float]:
        lock_step = LockStep()
        first = asyncio.gather(*(turn(lock_step, name, 0.0, 4.0) for name in "ab"))
        late = asyncio.create_task(turn(lock_step, "c", 1.0, 1.0))
        await first
        second = await asyncio.gather(*(turn(lock_step, name, 3.0, 2.0) for name in "ab"))
        return [await late, *second]

    assert run_virtual(play()) == [4 + 3 + 2] * 3


def test_turns_of_whole_runs_are_answered_together_in_lock_step_only() -> None:
    def times(run: PlayedRun) -> Counter[float]:
        """How many turns were answered at each time."""
        return Counter(
            round(each.answered_s, 6)
            for result in run.results
            for generated in result.generated
            if generated.episode is not None
            for each in generated.episode.turns
            if each.answered_s is not None
        )

    conditions = replace(FAILING, hang_share=0.0, crash_share=0.0)
    together = played(is_lock_step=True, conditions=conditions, num_steps=1)
    apart = played(conditions=conditions, num_steps=1)
    assert len(times(together)) == max(each.num_turns for each in together.episodes)
    assert len(times(apart)) > len(times(together))
    assert together.seconds > apart.seconds


# --- what becomes of every episode -------------------------------------------------------------


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 1000),
    is_lock_step=st.booleans(),
    num_steps=st.integers(1, 6),
)
def test_every_episode_that_is_begun_has_one_fate(
    policy: Policy, seed: int, is_lock_step: bool, num_steps: int
) -> None:
    run = played(policy, seed=seed, is_lock_step=is_lock_step, num_steps=num_steps)
    fates = [fate for result in run.results for fate in fates_of(result)]
    assert Counter(name for name, _ in fates) == Counter(each.episode_id for each in run.episodes)
    trained = [name for name, fate in fates if fate is Fate.TRAINED]
    assert len(trained) == len(set(trained))
    assert len(trained) == BATCH.responses_per_prompt * sum(
        len(result.groups) for result in run.results
    )
    failed = {name for name, fate in fates if fate is Fate.FAILED}
    assert failed == {
        each.episode_id for each in run.episodes if _failed(each) and each.episode_id in failed
    }
    assert not failed & set(trained)


def _failed(each: Played) -> bool:
    """Whether its last call was the one that its seed has fail."""
    failure = FAILING.failure(each.seed, each.num_turns)
    return failure is not None and failure[1] == each.turn


def test_tail_batching_trains_what_it_puts_off_and_redundant_groups_do_not() -> None:
    def put_off(run: PlayedRun) -> set[str]:
        return {prompt_id for result in run.results for prompt_id in result.deferred}

    def trained(run: PlayedRun) -> set[str]:
        groups = (group for result in run.results for group in result.groups)
        return {group.prompt.prompt_id for group in groups}

    kept = played(TailBatchingConfig(prompt_overprovision=1.5), num_steps=6)
    lost = played(POLICIES[3], num_steps=6)
    assert put_off(kept)
    assert put_off(kept) <= trained(kept)
    assert len(put_off(lost)) == 6 * 2
    assert not put_off(lost) & trained(lost)


def test_redundant_groups_plan_no_long_round() -> None:
    policy = RedundantGroups(TailBatchingConfig())
    before = Turn(
        state=QueueState(), batch=BATCH, step=1, num_steps=1, domains=("any",) * 99, seed=0
    )
    plan = policy.plan_round(before)
    assert plan is not None
    waiting = QueueState(queue=plan.prompts, num_drawn=len(plan.prompts))
    later = policy.plan_round(replace(before, state=waiting))
    assert later is not None
    assert not set(later.prompts) & set(plan.prompts)
    assert policy.plan_round(replace(before, state=waiting, step=2)) is None


# --- the figures -------------------------------------------------------------------------------


def test_wasted_seconds_are_those_of_episodes_that_are_not_trained() -> None:
    run = played(TailBatchingConfig(), num_steps=5, conditions=CONDITIONS["normal latencies alone"])
    found = outcome(run)
    trained = {
        response_id(group.prompt.prompt_id, response.generated.index)
        for result in run.results
        for group in result.groups
        for response in group.responses
    }
    first: list[Played] = []  # of episodes that were begun again
    last: dict[str, Played] = {}
    for each in run.episodes:
        first += [last[each.episode_id]] if each.episode_id in last else []
        last[each.episode_id] = each
    others = [each for name, each in last.items() if name not in trained]
    assert found.wasted_s == pytest.approx(sum(each.busy_s for each in first + others))
    assert found.turn_bias == 0  # all that were begun are trained in the end
    assert found.fates[Fate.PUT_OFF] == len(first)


def test_speedups_are_of_equal_seeds_and_equal_numbers_of_trained_episodes() -> None:
    found = outcome(played())
    slow, slower = replace(found, seconds=40.0), replace(found, seconds=60.0)
    fast = replace(found, seconds=10.0)
    runs = {LOCK_STEP: [slow, slower], OWN_PACE: [fast, fast]}
    assert speedups(runs, OWN_PACE) == [4.0, 6.0]
    half = replace(fast, trained=found.trained // 2)
    assert step_s(half) == 2 * step_s(fast)
    assert {line.name for line in LINES} >= {LOCK_STEP.name, OWN_PACE.name}
