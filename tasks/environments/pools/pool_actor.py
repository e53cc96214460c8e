"""Workers of the role environment: the Dask actor that holds one pool for all engines of a run, and
the keeper that replaces lost actors.

    engine-0, engine-1, ... ── reset, step, end ──▶ PoolActor ─▶ EnvironmentPool ─▶ processes

An engine calls under a name that no later process of that engine has, and gives every reset another
episode id. The episodes of an engine that makes no call for a while are ended. No call waits behind
another, so an `end` may arrive before the `reset` of the same episode, which it then breaks off.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from artifacts.episodes import Ending
from artifacts.records import pack, unpack
from tasks.cluster.actors import ActorLost
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool_report import PoolLoad
from tasks.environments.pools.status_board import ReportingPool

logger = logging.getLogger(__name__)

ENDED = "its episode was ended"
SILENT_S = 120.0  # a caller without a call for so long is gone
SWEEP_S = 10.0  # between two checks for silent callers
CHECK_S = 2.0  # between two checks for lost workers
NUM_ENDED = 1000  # episodes that are remembered because their end came first


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The result of a call to a `PoolActor`."""

    # None where the call failed, and of a reset that goes on from a state
    value: str | Transition | None = None
    state: bytes = b""  # of the environment after it
    ending: Ending | None = None  # of the episode, where the call failed
    detail: str = ""  # the reason in a few words
    is_unknown: bool = False  # there is no such episode here: it was begun with an earlier process
    load: PoolLoad  # how full the pool is now


class PoolActor:
    """The actor with the pool of one worker; `warm` comes before the first episode."""

    def __init__(
        self,
        config: EnvironmentProcessConfig,
        settings: Sequence[EnvironmentSettings],
        run_id: str,
        name: str,
    ) -> None:
        """settings: of expected environments. name: of the worker."""
        self._pool = ReportingPool(config, settings, run_id, name)
        self._last_call_s: dict[str, float] = {}  # by caller, on the monotonic clock
        # an episode's name here is CALLER/ID
        self._open: set[str] = set()
        self._calls: dict[str, asyncio.Future[str | Transition | None]] = {}  # that are made
        self._ended_first: deque[str] = deque(maxlen=NUM_ENDED)
        self._sweeping: asyncio.Task[None] | None = None

    async def ping(self) -> None:
        """Return as long as the process lives."""

    async def warm(self) -> None:
        """Start the fork servers. Raises as `EnvironmentProcesses.warm`."""
        await self._pool.warm()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())

    async def keep_alive(self, caller: str) -> bytes:
        """Take a sign of life from a caller. Returns a packed `PoolLoad`."""
        self._last_call_s[caller] = time.monotonic()
        return pack(self._pool.load)

    async def reset(self, caller: str, episode_id: str, payload: bytes) -> bytes:
        """Begin an episode; payload: settings, seed, state. Returns a packed `CallResult`."""
        settings, seed, state = unpack(payload)
        self._last_call_s[caller] = time.monotonic()
        name = f"{caller}/{episode_id}"
        if name in self._ended_first:
            return pack(CallResult(ending=Ending.CRASHED, detail=ENDED, load=self._pool.load))
        self._open.add(name)
        return await self._answer(name, self._pool.reset(name, settings, seed, state))

    async def step(self, caller: str, episode_id: str, text: str) -> bytes:
        """Take a turn. Returns a packed `CallResult`."""
        self._last_call_s[caller] = time.monotonic()
        name = f"{caller}/{episode_id}"
        if name not in self._open:
            return pack(CallResult(is_unknown=True, load=self._pool.load))
        return await self._answer(name, self._pool.step(name, text))

    async def end(self, caller: str, episode_id: str) -> bytes:
        """End an episode. Returns a packed `PoolLoad`."""
        self._last_call_s[caller] = time.monotonic()
        name = f"{caller}/{episode_id}"
        if name not in self._open:
            self._ended_first.append(name)
        await self._end(name)
        return pack(self._pool.load)

    async def leave(self, caller: str) -> None:
        """End all episodes of a caller that ends."""
        self._last_call_s.pop(caller, None)
        for name in [name for name in self._open if name.startswith(f"{caller}/")]:
            await self._end(name)

    async def close(self) -> None:
        """End every process."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._pool.close()

    async def _answer(self, name: str, work: Awaitable[str | Transition | None]) -> bytes:
        """Make a call; the end of its episode breaks the call off."""
        call = self._calls[name] = asyncio.ensure_future(work)
        try:
            value, state = await call, self._pool.snapshot(name)
            return pack(CallResult(value=value, state=state, load=self._pool.load))
        except EnvironmentFailed as error:
            ending, detail = error.ending, error.detail
        except asyncio.CancelledError:
            ending, detail = Ending.CRASHED, ENDED
        finally:
            if self._calls.get(name) is call:
                del self._calls[name]
        self._open.discard(name)
        return pack(CallResult(ending=ending, detail=detail, load=self._pool.load))

    async def _end(self, name: str) -> None:
        self._open.discard(name)
        call = self._calls.pop(name, None)
        if call is not None:
            call.cancel()
        await self._pool.end(name)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = time.monotonic()
            for caller, last_s in tuple(self._last_call_s.items()):
                if now_s - last_s > SILENT_S:
                    await self.leave(caller)


class PoolKeeper:
    """Replaces lost workers of environments while rounds go on, so that no episode waits for a
    recovery of the run. Such workers train nothing and hold nothing that a replay needs. A worker
    that is lost too often is given up; the others go on with its episodes. For one event loop."""

    def __init__(
        self,
        names: Sequence[str],
        lost: Callable[[Collection[str]], Awaitable[tuple[str, ...]]],
        make: Callable[[Sequence[str]], Awaitable[None]],
        max_remakes: int,
    ) -> None:
        """lost: returns the names of those of these workers that do not answer. make: makes new
        actors for these workers, in new processes if the old ones live. max_remakes: the bound for
        each worker."""
        self._names = set(names)
        self._lost, self._make = lost, make
        self._max_remakes = max_remakes
        self._remakes = Counter[str]()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Check the workers from now on; does nothing if it does already, or without workers."""
        if self._names and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    def stop(self) -> None:
        """Stop checking the workers."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    async def _keep(self) -> None:
        while self._names:
            await asyncio.sleep(CHECK_S)
            try:
                lost = await self._lost(self._names)
            except (RuntimeError, OSError) as error:  # of the connection, not of a worker
                logger.warning("workers of environments not looked at: %s", error)
                continue
            for name in lost:
                self._remakes[name] += 1
                if self._remakes[name] > self._max_remakes:
                    logger.warning("worker=%s of environments given up: lost too often", name)
                    self._names.discard(name)
                    continue
                logger.warning("worker=%s of environments lost, made anew", name)
                try:
                    await self._make((name,))
                # TimeoutError is an OSError; ValueError says that its fork server did not start
                except (ActorLost, RuntimeError, OSError, ValueError) as error:
                    logger.warning("worker=%s of environments not made anew: %s", name, error)
