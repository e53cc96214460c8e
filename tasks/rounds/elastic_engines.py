"""Elastic workers of a round: engines that join and leave while the round runs.

    ElasticWorkers ── ElasticNews ──▶ the round's sources ──▶ ResponseTracker
      EngineJoined    it gets what waits, and then new requests; once more when it has newer weights
      EngineLeaving   it gets nothing more; what runs there moves on with its tokens
      EngineGone      what ran there is generated elsewhere

News may arrive twice, late, or about an engine that the round does not know: news that changes
nothing is ignored. A round calls an elastic worker through a `BufferedEngine`, whose `submit` and
`abort` return at once:

    submit, abort ─▶ sent one after the other, by a task of its own ─┐
    collect ───────▶ the elastic worker's answer, or the failure of a send ◀┘

So an elastic worker that hangs delays no other engine. Any failure of an elastic worker counts as
its loss: the run goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeVar

from artifacts.new_tokens import News
from artifacts.records import Request
from tasks.engines.base import Engine, EngineLost, EngineStats


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined:
    """An engine is ready to generate. No other engine of the run has ever had its name."""

    engine: Engine  # the replica; only responses that a round before left may run on it
    devices: tuple[str, ...]  # the devices that it works on, for the timeline
    version: int  # the weight version that it has
    max_running: int | None = None  # requests that it takes at a time; None for any number


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLeaving:
    """An engine will be gone soon but still answers."""

    name: str  # of the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGone:
    """An engine is gone, even if no call to it has failed yet."""

    name: str  # of the engine
    reason: str  # one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNotice:
    """A notice to rounds about an elastic worker, in plain values that can cross processes."""

    name: str  # of its engine
    kind: Literal["joined", "leaving", "gone"]
    version: int = -1  # weights that it holds; given where it joined, like its devices
    devices: tuple[str, ...] = ()  # that it works on
    reason: str = ""  # why it is gone


ElasticNews = EngineJoined | EngineLeaving | EngineGone


class ElasticWorkers(Protocol):
    """The elastic workers of a run, as a round sees them."""

    async def news(self, wait_s: float) -> list[ElasticNews]:
        """Return the news since the last call, in the first call about the elastic workers that are
        present. Waits up to wait_s for the first news."""
        ...

    async def give_up(self, name: str, reason: str) -> None:
        """Have this elastic worker begin anew before any round uses it again. It may live and still
        run requests of this round, which ignores the worker from now on. Raises nothing if the
        worker cannot be reached."""
        ...


Answer = TypeVar("Answer")


class BufferedEngine:
    """Calls an elastic worker through a queue, so that a round need not wait for the worker.
    Belongs to one event loop; `close` ends the task that sends the calls."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine
        self._calls: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._num_unsent = 0  # submissions that the elastic worker has not received
        self._failure = f"{self.name} is not waited for any more"
        self._sending = asyncio.create_task(self._send())

    async def submit(self, requests: Sequence[Request]) -> None:
        """Queue these requests behind the earlier calls."""
        self._num_unsent += 1
        self._calls.put_nowait(partial(self._submit, tuple(requests)))

    async def abort(self, response_ids: Sequence[str]) -> None:
        """Queue the abort of these responses behind the earlier calls."""
        self._calls.put_nowait(partial(self._engine.abort, response_ids))

    async def collect(self, wait_s: float) -> list[News]:
        """See `Engine.collect`. Raises EngineLost, also for the failure of an earlier call."""
        collecting = asyncio.ensure_future(self._answer(self._engine.collect(wait_s)))
        try:
            await asyncio.wait({collecting, self._sending}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                raise EngineLost(self._failure)
            return collecting.result()
        finally:
            collecting.cancel()

    async def stats(self) -> EngineStats:
        """See `Engine.stats`. Raises EngineLost."""
        return await self._answer(self._engine.stats())

    @property
    def has_all(self) -> bool:
        """True if the elastic worker has received every request."""
        return self._num_unsent == 0

    def hurry(self, max_s: float) -> None:
        """Give the elastic worker max_s seconds to hand back its responses; then it counts as
        lost."""
        asyncio.get_running_loop().call_later(max_s, self.close)

    def close(self) -> None:
        """Send the elastic worker no more calls; an open `collect` raises EngineLost."""
        self._sending.cancel()

    async def _submit(self, requests: Sequence[Request]) -> None:
        await self._engine.submit(requests)
        self._num_unsent -= 1

    async def _send(self) -> None:
        """Make the queued calls; ends with the first that fails."""
        while True:
            call = await self._calls.get()
            try:
                await call()
            except Exception as error:
                self._failure = f"{self.name} could not be told something: {error}"
                return

    async def _answer(self, call: Awaitable[Answer]) -> Answer:
        """The elastic worker's answer. Raises EngineLost for any failure."""
        try:
            return await call
        except EngineLost:
            raise
        except Exception as error:
            raise EngineLost(f"{self.name}: {type(error).__name__}: {error}") from error
