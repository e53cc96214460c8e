"""Environments in the workers of the role environment, as the process of an engine sees them.

    reset ─▶ the worker where it is expected to wait least ─▶ step, step, ... ─▶ end
    a call ── the worker is lost ─▶ EnvironmentLost ─▶ reset, at another one

    expected wait = seconds of a step there x (episodes there + 1)
                  + seconds an episode holds its place x (places asked for beyond those there are)
                    / places

An episode stays with its worker. A worker without readings counts as the mean of the others, so
that all are tried. Every few seconds each worker gets a sign of life of the engine and answers with
its load; the connection to a lost one is tried again until the worker is back with a new actor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from uuid import uuid4

from artifacts.episodes import Ending
from artifacts.records import pack, unpack
from tasks.cluster.actors import ActorLost, Remote
from tasks.environments.base import (
    Crashed,
    EnvironmentFailed,
    EnvironmentLost,
    EnvironmentSettings,
    Transition,
)
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool_actor import CallResult
from tasks.environments.pools.pool_report import PoolLoad

LOG = logging.getLogger(__name__)
WEIGHT = 0.2  # of a new reading in a running mean
START_S = 120.0  # for what a reset may have started beside the environment: fork server and process
KEEP_ALIVE_S = 5.0  # between two signs of life to a worker
RETRY_S = 1.0  # between two tries to connect to a lost one
ANSWER_S = 20.0  # for a worker to answer a sign of life
EXTRA_S = 30.0  # for messages of a call that wait behind others


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """An engine's readings of one worker of environments."""

    step_s: float | None = None  # running mean of a step as the caller waits; None before the first
    held_s: float | None = None  # running mean of the time from an episode's reset to its end
    own: int = 0  # episodes of this engine there, those that wait for a place among them
    others: int = 0  # those of other engines, when it last answered
    num_places: int = 1  # processes there

    def begun(self) -> WorkerView:
        """Count one more episode of this engine."""
        return replace(self, own=self.own + 1)

    def ended(self, held_s: float | None = None) -> WorkerView:
        """Count one episode less. held_s: its duration, None if it had not begun."""
        known = self.held_s if held_s is None else _mean(self.held_s, held_s)
        return replace(self, own=self.own - 1, held_s=known)

    def stepped(self, wall_s: float) -> WorkerView:
        """Count a step that was answered."""
        return replace(self, step_s=_mean(self.step_s, wall_s))

    def loaded(self, load: PoolLoad) -> WorkerView:
        """Update the view with the load that the worker reports."""
        others = load.num_episodes + load.num_waiting - self.own
        return replace(self, others=max(0, others), num_places=load.num_places)

    def expected_wait_s(self, step_s: float, held_s: float) -> float:
        """Returns the next episode's expected wait; step_s, held_s: where there is no reading."""
        step_s = step_s if self.step_s is None else self.step_s
        held_s = held_s if self.held_s is None else self.held_s
        num_episodes = self.own + self.others + 1
        excess = max(0, num_episodes - self.num_places)
        return step_s * num_episodes + held_s * excess / self.num_places


def least_wait(views: Mapping[str, WorkerView]) -> str:
    """Returns the name of the worker with the least expected wait; of equal ones the first."""
    step_s = _known_mean([view.step_s for view in views.values()])
    held_s = _known_mean([view.held_s for view in views.values()])
    return min(views, key=lambda name: views[name].expected_wait_s(step_s, held_s))


def _mean(before: float | None, reading: float) -> float:
    return reading if before is None else before + WEIGHT * (reading - before)


def _known_mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 1.0


class WorkerLost(Exception):
    """Raised if the worker does not answer: its episodes should go on elsewhere."""


Call = Callable[..., Awaitable[Any]]  # as `Remote.call`
Connect = Callable[[str], Awaitable[Call]]  # to a worker by name; raises if it is not there


class PoolWorker:
    """The connection to one worker, and the engine's view of it."""

    def __init__(self, name: str, caller: str, connect: Connect) -> None:
        self.name = name
        self.view = WorkerView()
        self.abandoned: list[str] = []  # episodes that went on elsewhere when it was lost
        self._caller = caller
        self._connect = connect
        self._connection: Call | None = None

    @property
    def is_there(self) -> bool:
        """True if there is a connection on which no call has failed."""
        return self._connection is not None

    async def call(self, method: str, *args: object, deadline_s: float) -> Any:
        # Any: whatever the method returns
        """Call its actor in the name of this engine. Raises WorkerLost when it does not answer."""
        connection = self._connection
        if connection is None:
            raise WorkerLost(f"{self.name} is not there")
        try:
            return await connection(method, self._caller, *args, deadline_s=deadline_s)
        except (ActorLost, TimeoutError) as error:
            if self._connection is connection:
                self._connection = None
                LOG.warning("worker=%s of environments lost: %s", self.name, error)
            raise WorkerLost(str(error)) from error

    async def check(self) -> bool:
        """Connect if it was lost, and take its load. True if the worker answers."""
        if self._connection is None:
            try:
                self._connection = await self._connect(self.name)
            except Exception:  # of an actor that is gone or not made yet
                return False
        try:
            load = unpack(await self.call("keep_alive", deadline_s=ANSWER_S))
            while self.abandoned:
                await self.call("end", self.abandoned[0], deadline_s=ANSWER_S)
                del self.abandoned[0]  # more may have come behind it
        except WorkerLost:
            return False
        self.view = self.view.loaded(load)
        return True


@dataclass(slots=True, kw_only=True)
class RemoteEpisode:
    """One episode at a worker."""

    worker: PoolWorker
    name: str  # of the episode at its worker
    began_s: float  # on the monotonic clock
    state: bytes = b""  # of its environment after the last turn


class RemotePools:
    """`EnvironmentProcesses` in other workers. For the coroutines of one event loop."""

    def __init__(
        self, names: Sequence[str], caller: str, connect: Connect, config: EnvironmentProcessConfig
    ) -> None:
        """names: the workers of the role environment. caller: a name that no other process has.
        config: that of the pools at the workers."""
        self.workers = {name: PoolWorker(name, caller, connect) for name in names}
        self._config = config
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._found = asyncio.Event()
        self._remote: dict[str, RemoteEpisode] = {}  # by episode
        self._numbers = count(1)
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def of(
        cls, run_id: str, engine: str, names: Sequence[str], config: EnvironmentProcessConfig
    ) -> RemotePools:
        """Make the pools for an engine."""

        async def connect(name: str) -> Call:
            return (await asyncio.to_thread(Remote.connect, run_id, name)).call

        return cls(names, f"{engine}:{uuid4().hex[:8]}", connect, config)

    async def warm(self) -> None:
        """Connect to the workers, which the flow has warmed, and stay connected."""
        for name, worker in self.workers.items():
            if name not in self._watching:
                self._watching[name] = asyncio.create_task(self._watch(worker))

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        """Begin an episode at the worker with the least expected wait. Raises EnvironmentLost if
        that is lost meanwhile; else as `EnvironmentProcesses.reset`."""
        await self.end(episode_id)
        worker = await self._best_worker()
        worker.view = worker.view.begun()
        name = f"{episode_id}#{next(self._numbers)}"
        self._remote[episode_id] = RemoteEpisode(worker=worker, name=name, began_s=time.monotonic())
        payload = pack((settings, seed, state))
        limit_s = self._config.place_s + self._config.reset_s + START_S
        said = await self._ask(episode_id, "reset", payload, limit_s)
        assert not isinstance(said, Transition), "that is the answer to a step"
        return said

    async def step(self, episode_id: str, text: str) -> Transition:
        started_s = time.monotonic()
        transition = await self._ask(episode_id, "step", text, self._config.step_s)
        assert isinstance(transition, Transition), "that is the answer to a reset"
        remote = self._remote.get(episode_id)
        if remote is not None:
            remote.worker.view = remote.worker.view.stepped(time.monotonic() - started_s)
        return transition

    def snapshot(self, episode_id: str) -> bytes:
        remote = self._remote.get(episode_id)
        return remote.state if remote is not None else b""

    async def end(self, episode_id: str) -> None:
        remote = self._remote.get(episode_id)
        if remote is None:
            return
        self._leave(episode_id)
        try:
            load = unpack(await remote.worker.call("end", remote.name, deadline_s=ANSWER_S))
        except (WorkerLost, asyncio.CancelledError) as error:
            remote.worker.abandoned.append(remote.name)  # the call may not have reached it
            if isinstance(error, WorkerLost):
                return
            raise
        remote.worker.view = remote.worker.view.loaded(load)

    def close(self) -> None:
        """End every episode, without waiting."""
        self._remote.clear()
        self._closing = asyncio.ensure_future(self._leave_workers())

    async def _ask(
        self, episode_id: str, method: str, told: str | bytes, limit_s: float
    ) -> str | Transition | None:
        """Call the episode's worker. Raises as `EnvironmentProcesses.step`."""
        remote = self._remote.get(episode_id)
        if remote is None:
            raise Crashed("this pool knows no such episode")
        worker = remote.worker
        try:
            payload = await worker.call(method, remote.name, told, deadline_s=limit_s + EXTRA_S)
        except WorkerLost as error:
            raise self._lost(episode_id, str(error)) from error
        answer: CallResult = unpack(payload)
        worker.view = worker.view.loaded(answer.load)
        if answer.is_unknown:
            raise self._lost(episode_id, f"{worker.name} has begun anew and knows nothing of it")
        if answer.ending is not None:
            self._leave(episode_id)
            raise EnvironmentFailed(answer.ending, answer.detail)
        remote.state = answer.state
        return answer.value

    def _lost(self, episode_id: str, reason: str) -> EnvironmentLost:
        """Returns the error; what is left of the episode is ended when its worker is back."""
        remote = self._remote.pop(episode_id, None)
        if remote is not None:  # else it was ended meanwhile
            remote.worker.view = remote.worker.view.ended()
            remote.worker.abandoned.append(remote.name)
        return EnvironmentLost(f"its worker of environments was lost: {reason}")

    async def _best_worker(self) -> PoolWorker:
        """Returns the next episode's worker. Raises EnvironmentFailed if none is there in time."""
        await self.warm()
        wait_s = self._config.place_s
        try:
            async with asyncio.timeout(wait_s):
                while not any(worker.is_there for worker in self.workers.values()):
                    self._found.clear()
                    await self._found.wait()
        except TimeoutError as error:
            raise EnvironmentFailed(
                Ending.UNANSWERED,
                f"no worker of environments was there for {wait_s:g} s, neither of"
                f" {', '.join(self.workers)}",
            ) from error
        there = {name: worker.view for name, worker in self.workers.items() if worker.is_there}
        return self.workers[least_wait(there)]

    async def _watch(self, worker: PoolWorker) -> None:
        while True:
            if is_there := await worker.check():
                self._found.set()
            await asyncio.sleep(KEEP_ALIVE_S if is_there else RETRY_S)

    async def _leave_workers(self) -> None:
        """End this engine's episodes at all workers that answer."""
        for task in self._watching.values():
            task.cancel()
        leaving = (worker.call("leave", deadline_s=ANSWER_S) for worker in self.workers.values())
        for result in await asyncio.gather(*leaving, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, WorkerLost):
                raise result

    def _leave(self, episode_id: str) -> None:
        remote = self._remote.pop(episode_id, None)
        if remote is not None:
            held_s = time.monotonic() - remote.began_s
            remote.worker.view = remote.worker.view.ended(held_s)
