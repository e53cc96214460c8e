"""A round hears of its own verdicts alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from learner_factories import make_group

from artifacts.records import Generated, Outcome
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.simulation.reward_queue import RewardWorkers
from tasks.simulation.simulated_run import RoundFeed
from tasks.simulation.workloads import QueuedFeed, workload

GROUP = make_group((1, 2), [(3,), (4, 5)], [1.0, 0.0])
FIRST, SECOND = (response.generated for response in GROUP.responses)


async def told_after_close(of_next: Generated) -> list[tuple[int, float]]:
    """(index, when) of what a round is told that publishes 1 s after the one before it closed."""
    feed = RoundFeed(SimulatedFeed(SimulatedRewardConfig(median_s=5.0, sigma=0.0)))
    await feed.publish([FIRST])
    feed.open_round()
    await asyncio.sleep(1.0)
    await feed.publish([of_next])
    told = await feed.scored(20.0)
    return [(score.index, asyncio.get_running_loop().time()) for score in told]


def test_verdicts_of_an_earlier_round_are_nobodys() -> None:
    assert run_virtual(told_after_close(SECOND)) == [(SECOND.index, 6.0)]


def test_a_response_that_is_asked_again_waits_for_its_own_verdict() -> None:
    assert run_virtual(told_after_close(FIRST)) == [(FIRST.index, 6.0)]


def test_a_verdict_on_what_was_taken_over_is_not_given_up_when_a_new_response_comes() -> None:
    """The round before asked for one response, this one asks for the other."""

    async def outcomes() -> list[tuple[int, Outcome]]:
        queue = QueuedFeed(workload("judge", 1_000), RewardWorkers(), seed=0)
        feed = RoundFeed(queue)
        heard: list[tuple[int, Outcome]] = []
        for taken_over, new in ((FIRST, None), (FIRST, SECOND)):
            feed.open_round()
            await feed.publish([taken_over])
            if new is not None:
                await feed.publish([replace(new, attempt=FIRST.attempt + 1)])
        while len(heard) < 2:
            heard += [(score.index, score.outcome) for score in await feed.scored(100.0)]
        return heard

    told = run_virtual(outcomes())
    assert sorted(index for index, _ in told) == sorted((FIRST.index, SECOND.index))
    assert Outcome.INFRA not in {outcome for _, outcome in told}


def test_a_wait_for_verdicts_of_others_ends_in_time() -> None:
    async def wait() -> tuple[int, float]:
        feed = RoundFeed(SimulatedFeed(SimulatedRewardConfig(median_s=5.0, sigma=0.0)))
        await feed.publish([FIRST])
        feed.open_round()
        told = await feed.scored(8.0)
        return len(told), asyncio.get_running_loop().time()

    assert run_virtual(wait()) == (0, 8.0)
