"""The rollout replicas of a round as one: placement, one long poll per replica, losses and revivals.

    submit, abort -> Router -> Engine calls           Engine.collect -> inbox (Arrived)
                                  └── EngineLost ──▶  inbox (Vanished) ── revive ──▶ inbox (Joined)

A replica is polled only while it owes something, so no poll outlives its round and swallows the next one's responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from artifacts.records import Generated, Request
from tasks.engines.base import Engine, EngineLost
from tasks.engines.router import Router

Revive = Callable[[str], Awaitable[Engine | None]]
POLL_S = 10.0  # longest single wait for responses


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Responses came back, finished or aborted."""

    generated: tuple[Generated, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vanished:
    """A replica is gone, and with it everything of these responses."""

    response_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A revival ended, well or not."""

    engine: Engine | None  # None: it stays lost


Inbox = asyncio.Queue[object]  # Arrived, Vanished and Joined; exceptions; and whatever else the owner puts in


class Replicas:
    """Engines behind one submit and one abort; what they answer goes to the inbox."""

    def __init__(self, engines: Sequence[Engine], inbox: Inbox, *, groups_together: bool, revive: Revive | None) -> None:
        self._inbox = inbox
        self._revive = revive
        self._router = Router([], groups_together=groups_together)
        self._engines: dict[str, Engine] = {}
        self._owes: dict[str, asyncio.Event] = {}
        self._collectors: dict[str, asyncio.Task[None]] = {}
        self._revivals: set[asyncio.Task[None]] = set()
        self._unplaced: list[Request] = []
        self._aborted: set[str] = set()
        self._quiet = asyncio.Event()
        self.lost: dict[str, str] = {}  # reason by replica, the latest loss of each
        for engine in engines:
            self.add(engine)

    def add(self, engine: Engine) -> None:
        """Take a replica in and listen to it."""
        self._router.add(engine.name)
        self._engines[engine.name] = engine
        self._owes[engine.name] = asyncio.Event()
        self._collectors[engine.name] = asyncio.create_task(self._collect(engine))

    async def submit(self, requests: Sequence[Request]) -> None:
        """One call per replica, in the order given. Waits for a revival if nobody is left; EngineLost if none is under way."""
        self._unplaced += requests
        await self.place()

    async def place(self) -> None:
        """Submit what waits for a replica."""
        if self._unplaced and not self._engines:
            if self._revivals:
                return
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.lost.items()) or "there was none to begin with"
            raise EngineLost(f"no rollout replica is left for {len(self._unplaced)} responses ({reasons})")
        requests, self._unplaced = self._unplaced, []
        batches: dict[str, list[Request]] = {}
        for request in requests:
            replica = self._router.place(request.prompt_id, request.response_id, request.max_new_tokens)
            batches.setdefault(replica, []).append(request)
            self._owes[replica].set()
            self._quiet.clear()
        await asyncio.gather(*(self._submit(name, batch) for name, batch in batches.items()))

    async def _submit(self, name: str, batch: list[Request]) -> None:
        if name in self._engines:  # it may have been lost since its requests were placed; they are in its Vanished then
            try:
                await self._engines[name].submit(batch)
            except EngineLost as error:
                self._lose(name, str(error))

    async def abort(self, response_ids: Iterable[str]) -> None:
        """Stop these, wherever they are; ids that nobody works on are ignored."""
        wanted = set(response_ids)
        self._unplaced = [request for request in self._unplaced if request.response_id not in wanted]
        batches: dict[str, list[str]] = {}
        for response_id in sorted(wanted - self._aborted):
            replica = self._router.replica_of(response_id)
            if replica is not None:
                self._aborted.add(response_id)
                batches.setdefault(replica, []).append(response_id)
        await asyncio.gather(*(self._abort(name, ids) for name, ids in batches.items()))

    async def _abort(self, name: str, response_ids: list[str]) -> None:
        if name in self._engines:
            try:
                await self._engines[name].abort(response_ids)
            except EngineLost as error:
                self._lose(name, str(error))

    async def close(self, drain_s: float) -> None:
        """Stop everything and take in the partial responses; a replica that withholds them for drain_s counts as lost."""
        self._revive = None
        self._unplaced = []
        await self.abort([response_id for name in self._engines for response_id in self._router.outstanding(name)])
        if self._num_owed():
            try:
                await asyncio.wait_for(self._quiet.wait(), drain_s)
            except TimeoutError:
                for name in [name for name in self._engines if self._router.outstanding(name)]:
                    self._lose(name, f"aborted responses did not come back within {drain_s:.0f} s")
        await _cancel([*self._collectors.values(), *self._revivals])

    def describe(self) -> str:
        """What is alive and what it owes, for error messages."""
        alive = [f"{name} owes {len(self._router.outstanding(name))} responses" for name in self._engines]
        return ", ".join([*alive, *(f"{name} was lost ({reason})" for name, reason in self.lost.items())]) or "no replica"

    async def _collect(self, engine: Engine) -> None:
        try:
            while True:
                await self._owes[engine.name].wait()
                generated = await engine.collect(POLL_S)
                self._take(engine.name, generated)
        except EngineLost as error:
            self._lose(engine.name, str(error))
        except Exception as error:  # reaches the owner through the inbox instead of dying with this task
            self._inbox.put_nowait(error)

    def _take(self, name: str, generated: Sequence[Generated]) -> None:
        for response in generated:
            self._router.finish(response.response_id)
            self._aborted.discard(response.response_id)
        if generated:
            self._inbox.put_nowait(Arrived(generated=tuple(generated)))
        if not self._router.outstanding(name):
            self._owes[name].clear()
        self._check_quiet()

    def _lose(self, name: str, reason: str) -> None:
        if self._engines.pop(name, None) is None:
            return
        self.lost[name] = reason
        owed = self._router.remove(name)
        self._aborted -= set(owed)
        del self._owes[name]
        collector = self._collectors.pop(name)
        if collector is not asyncio.current_task():
            collector.cancel()
        if self._revive is not None:
            self._revivals.add(asyncio.create_task(self._bring_back(name, self._revive)))
        self._inbox.put_nowait(Vanished(response_ids=owed))
        self._check_quiet()

    async def _bring_back(self, name: str, revive: Revive) -> None:
        message: object
        try:
            message = Joined(engine=await revive(name))
        except EngineLost:
            message = Joined(engine=None)
        except Exception as error:  # as above
            message = error
        task = asyncio.current_task()
        assert task is not None, "a revival runs in a task of its own"
        self._revivals.discard(task)
        self._inbox.put_nowait(message)

    def _num_owed(self) -> int:
        return sum(len(self._router.outstanding(name)) for name in self._engines)

    def _check_quiet(self) -> None:
        if self._num_owed() == 0:
            self._quiet.set()


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
