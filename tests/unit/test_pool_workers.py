"""What an engine left at a worker of environments that was lost is ended when it is back."""

from __future__ import annotations

import asyncio

import pytest

from artifacts.records import pack
from tasks.cluster.actors import ActorLost
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.pools.pool_actor import CallResult
from tasks.environments.pools.pool_report import PoolLoad
from tasks.environments.pools.remote_pools import Call, PoolWorker, RemotePools

ROOM = PoolLoad(num_places=1, num_episodes=0, num_waiting=0)
LOAD = pack(ROOM)


class Reached:
    """A connection over which a call that was made before the loss is given up late."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.worker: PoolWorker | None = None

    async def call(self, method: str, *args: object, deadline_s: float) -> bytes:
        if method == "end":
            self.ended.append(str(args[-1]))
            if self.worker is not None and len(self.ended) == 1:
                self.worker.abandoned.append("late")
        return LOAD


async def test_an_episode_that_is_given_up_while_another_is_ended_is_ended_too() -> None:
    reached = Reached()

    async def connect(name: str) -> Call:
        return reached.call

    worker = reached.worker = PoolWorker("environment-0", "engine-0:1", connect)
    worker.abandoned += ["early"]
    assert await worker.check()
    assert sorted(reached.ended) == ["early", "late"]
    assert not worker.abandoned


class Cut:
    """A connection that falls silent at the first end of an episode."""

    def __init__(self, is_refused: bool) -> None:
        self.ended: list[str] = []
        self.is_cut = asyncio.Event()
        self._is_refused = is_refused

    async def call(self, method: str, *args: object, deadline_s: float) -> bytes:
        if method == "end" and not self.is_cut.is_set():
            self.is_cut.set()
            if self._is_refused:
                raise ActorLost("the link is cut")
            await asyncio.Event().wait()
        if method == "end":
            self.ended.append(str(args[-1]))
        return pack(CallResult(value="Guess.", load=ROOM)) if method == "reset" else LOAD


@pytest.mark.parametrize("is_refused", [True, False], ids=["lost", "broken off"])
async def test_an_end_that_its_worker_may_not_have_heard_of_is_told_again(
    is_refused: bool,
) -> None:
    cut = Cut(is_refused)

    async def connect(name: str) -> Call:
        return cut.call

    names = ("environment-0",)
    hosts = RemotePools(names, "engine-0:1", connect, EnvironmentProcessConfig())
    await hosts.reset("0/1:0", GuessConfig(), 1)
    ending = asyncio.create_task(hosts.end("0/1:0"))
    await cut.is_cut.wait()
    if is_refused:
        await ending
    else:
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
    assert await hosts.workers["environment-0"].check()
    assert cut.ended == ["0/1:0#1"]
    hosts.close()
    assert hosts._closing is not None
    await hosts._closing
