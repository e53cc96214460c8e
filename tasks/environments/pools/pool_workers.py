"""The workers of the role environment as one engine knows them: which of them answer, what it has
there, and which is to have the next episode.

Every few seconds each is told that the engine goes on, and says how full it is; one that was lost
is looked for until it is there again, with a new actor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from artifacts.episodes import Ending
from artifacts.records import unpack
from tasks.cluster.actors import ActorLost
from tasks.environments.base import EnvironmentFailed
from tasks.environments.pools.pool_report import PoolLoad

WEIGHT = 0.2  # of a new reading in a running mean


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What an engine knows of one worker of environments."""

    step_s: float | None = None  # running mean of a step as the caller waits; None before the first
    held_s: float | None = None  # running mean of the time from an episode's reset to its end
    own: int = 0  # episodes of this engine there, those that wait for a place among them
    others: int = 0  # those of other engines, when it last answered
    num_places: int = 1  # processes there

    @property
    def num_episodes(self) -> int:
        """All that are there, as far as known."""
        return self.own + self.others

    def begun(self) -> WorkerView:
        """This engine has sent one more episode there."""
        return replace(self, own=self.own + 1)

    def ended(self, held_s: float | None = None) -> WorkerView:
        """One of this engine's episodes is there no more; held_s: how long, where it had begun."""
        known = self.held_s if held_s is None else _mean(self.held_s, held_s)
        return replace(self, own=self.own - 1, held_s=known)

    def stepped(self, wall_s: float) -> WorkerView:
        """A step was answered."""
        return replace(self, step_s=_mean(self.step_s, wall_s))

    def told(self, load: PoolLoad) -> WorkerView:
        """It said how full it is."""
        others = load.num_episodes + load.num_waiting - self.own
        return replace(self, others=max(0, others), num_places=load.num_places)

    def expected_wait_s(self, step_s: float, held_s: float) -> float:
        """Of the next episode there; step_s, held_s: what to take where nothing is known of it."""
        step_s = step_s if self.step_s is None else self.step_s
        held_s = held_s if self.held_s is None else self.held_s
        excess = max(0, self.num_episodes + 1 - self.num_places)
        return step_s * (self.num_episodes + 1) + held_s * excess / self.num_places


def least_wait(views: Mapping[str, WorkerView]) -> str:
    """The name of the worker for the next episode; of equal ones the first."""
    step_s = _known_mean([view.step_s for view in views.values()])
    held_s = _known_mean([view.held_s for view in views.values()])
    return min(views, key=lambda name: views[name].expected_wait_s(step_s, held_s))


def _mean(before: float | None, reading: float) -> float:
    return reading if before is None else before + WEIGHT * (reading - before)


def _known_mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 1.0


LOG = logging.getLogger(__name__)
HEAR_S = 5.0  # between two signs of life to a worker
LOOK_S = 1.0  # between two looks for one that is lost
HEAR_WITHIN_S = 20.0  # for a worker to answer a sign of life


class WorkerLost(Exception):
    """The worker does not answer: what was begun there is to go on elsewhere."""


class Connection(Protocol):
    """Calls to the actor of a worker; `tasks.cluster.actors.Remote` is one."""

    async def call(self, method: str, *args: object, deadline_s: float) -> Any:
        # Any: whatever the method returns
        """Raises ActorLost when the worker is gone, TimeoutError after deadline_s."""
        ...


Connect = Callable[[str], Awaitable[Connection]]  # to a worker by name; raises if it is not there


class PoolWorker:
    """One worker."""

    def __init__(self, name: str, caller: str, connect: Connect) -> None:
        self.name = name
        self.view = WorkerView()
        self.abandoned: list[str] = []  # episodes that went on elsewhere when it was lost
        self._caller = caller
        self._connect = connect
        self._connection: Connection | None = None

    @property
    def is_there(self) -> bool:
        """Whether it answered last time."""
        return self._connection is not None

    async def call(self, method: str, *args: object, deadline_s: float) -> Any:
        # Any: whatever the method returns
        """Call its actor in the name of this engine. Raises WorkerLost when it does not answer."""
        connection = self._connection
        if connection is None:
            raise WorkerLost(f"{self.name} is not there")
        try:
            return await connection.call(method, self._caller, *args, deadline_s=deadline_s)
        except (ActorLost, TimeoutError) as error:
            if self._connection is connection:
                self._connection = None
                LOG.warning("worker=%s of environments lost: %s", self.name, error)
            raise WorkerLost(str(error)) from error

    async def look(self) -> bool:
        """Tell it that the engine goes on; whether it is there."""
        if self._connection is None:
            try:
                self._connection = await self._connect(self.name)
            except Exception:  # whatever is said of an actor that is gone or not made yet
                return False
        try:
            load = unpack(await self.call("hear", deadline_s=HEAR_WITHIN_S))
            while self.abandoned:
                await self.call("end", self.abandoned[0], deadline_s=HEAR_WITHIN_S)
                del self.abandoned[0]  # more may have come behind it
        except WorkerLost:
            return False
        self.view = self.view.told(load)
        return True


class PoolWorkers:
    """All of them. For the coroutines of one event loop."""

    def __init__(self, names: Sequence[str], caller: str, connect: Connect) -> None:
        """caller: a name that no other process has."""
        self._workers = {name: PoolWorker(name, caller, connect) for name in names}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._found = asyncio.Event()

    async def best(self, wait_s: float) -> PoolWorker:
        """The one for the next episode. Raises EnvironmentFailed if none is there for wait_s."""
        self.watch()
        try:
            async with asyncio.timeout(wait_s):
                while not (views := self._views()):
                    self._found.clear()
                    await self._found.wait()
        except TimeoutError as error:
            raise EnvironmentFailed(
                Ending.UNANSWERED,
                f"no worker of environments was there for {wait_s:g} s, neither of"
                f" {', '.join(self._workers)}",
            ) from error
        return self._workers[least_wait(views)]

    def watch(self) -> None:
        """Look for them from now on."""
        for name, worker in self._workers.items():
            if name not in self._watching:
                self._watching[name] = asyncio.create_task(self._watch(worker))

    async def close(self) -> None:
        """Look no more, and tell those that are there that all is over."""
        for task in self._watching.values():
            task.cancel()
        await asyncio.gather(*map(_leave, self._workers.values()))

    def _views(self) -> dict[str, WorkerView]:
        return {name: worker.view for name, worker in self._workers.items() if worker.is_there}

    async def _watch(self, worker: PoolWorker) -> None:
        while True:
            if is_there := await worker.look():
                self._found.set()
            await asyncio.sleep(HEAR_S if is_there else LOOK_S)


async def _leave(worker: PoolWorker) -> None:
    try:
        await worker.call("leave", deadline_s=HEAR_WITHIN_S)
    except WorkerLost:
        return
