"""What is noted of real environments, and turns that they take together."""

from __future__ import annotations

import asyncio

import pytest
from episode_factories import GAME, LocalHosts

from artifacts.episodes import Ending
from benchmarks.slow_environments import LockStep
from benchmarks.watched_hosts import WatchedHosts
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.environments.base import EnvironmentFailed


def call_s(episode_id: str, call: int) -> float:
    """A second, of b's second call three; c's second call fails after two."""
    if (episode_id, call) == ("c", 1):
        raise EnvironmentFailed(Ending.CRASHED, "as wanted")
    return 3.0 if (episode_id, call) == ("b", 1) else 1.0


async def two_calls(hosts: WatchedHosts, name: str) -> float:
    """When the second was answered."""
    await hosts.reset(name, GAME, seed=1)
    try:
        await hosts.step(name, "500")
    except EnvironmentFailed:
        await hosts.end(name)
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("lock_step", "answered_s"), [(None, [2.0, 4.0, 1.0]), (LockStep(), [4.0, 4.0, 1.0])]
)
def test_calls_are_noted_and_in_lock_step_wait_for_the_slowest(
    lock_step: LockStep | None, answered_s: list[float]
) -> None:
    async def play() -> tuple[list[float], WatchedHosts]:
        hosts = WatchedHosts(LocalHosts(step_s=call_s), lock_step)
        times = await asyncio.gather(*(two_calls(hosts, name) for name in "abc"))
        return times, hosts

    times, hosts = run_virtual(play())
    assert times == answered_s
    noted = [(each.episode_id, each.turn, each.busy_s) for each in hosts.played]
    assert noted == [("a", 1, 2.0), ("b", 1, 4.0), ("c", 1, 1.0)]
