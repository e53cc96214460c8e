"""Calls to actors end: with an answer, or with a word about why there is none."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.client import FutureCancelledError

from tasks.cluster.actors import ActorLost, Remote


class Proxy:
    """As Dask's: a call to a process that has just ended is tried on and on, and only the next one
    is told that the worker is gone."""

    def __init__(self, answers: bool, is_lost: bool) -> None:
        self.answers = answers
        self.is_lost = is_lost
        self.num_asked = 0
        self.num_cancelled = 0

    @property
    def work(self) -> object:
        self.num_asked += 1
        if self.is_lost and self.num_asked > 1:
            raise RuntimeError("Worker holding Actor was lost.  Status: lost")
        return self._work

    async def _work(self) -> str:
        try:
            await asyncio.sleep(0.01 if self.answers else 60)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return "done"


async def call(proxy: Proxy, deadline_s: float) -> object:
    return await Remote("engine-0", proxy, asyncio.get_running_loop()).call(
        "work", deadline_s=deadline_s
    )


async def test_an_answer_comes_back() -> None:
    assert await call(Proxy(answers=True, is_lost=False), deadline_s=5) == "done"


async def test_a_worker_that_ends_under_a_call_is_lost_long_before_the_deadline() -> None:
    began_s = time.monotonic()
    with pytest.raises(ActorLost, match="engine-0 was lost during work: Worker holding Actor"):
        await call(Proxy(answers=False, is_lost=True), deadline_s=60)
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("is_lost", [False, True])
async def test_nobody_waits_on_when_the_call_has_ended(is_lost: bool) -> None:
    proxy = Proxy(answers=False, is_lost=is_lost)
    with pytest.raises(ActorLost if is_lost else TimeoutError):
        await call(proxy, deadline_s=30 if is_lost else 0.05)
    await asyncio.sleep(0.05)
    assert proxy.num_cancelled == 1


async def test_a_deadline_of_the_method_s_own_is_told_in_its_words() -> None:
    async def work() -> None:
        raise TimeoutError("waited 2 s for room for 5 items")

    remote = Remote("sample-buffer", SimpleNamespace(work=work), asyncio.get_running_loop())
    with pytest.raises(TimeoutError, match="waited 2 s for room for 5 items"):
        await remote.call("work", deadline_s=60)


def test_an_actor_that_is_forgotten_while_it_is_looked_for_is_lost() -> None:
    def result(timeout: float) -> None:
        raise FutureCancelledError("run-spot.g1-g1", "the key was cancelled")

    future = SimpleNamespace(done=lambda: True, result=result)
    client: Any = SimpleNamespace(get_dataset=lambda name: future)
    with pytest.raises(ActorLost, match=r"spot\.g1 is not there: run-spot\.g1-g1 cancelled"):
        Remote.connect("run", "spot.g1", client)
