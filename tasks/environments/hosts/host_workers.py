"""The workers of the role environment as one engine knows them: which of them answer, what it has
there, and which is to have the next episode.

Every few seconds each is told that the engine goes on, and says how full it is; one that was lost
is looked for until it is there again, with a new actor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from artifacts.episodes import Ending
from artifacts.records import unpack
from tasks.cluster.actors import ActorLost
from tasks.environments.base import EnvironmentFailed
from tasks.environments.hosts.balance import WorkerView, least_wait

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


class HostWorker:
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


class HostWorkers:
    """All of them. For the coroutines of one event loop."""

    def __init__(self, names: Sequence[str], caller: str, connect: Connect) -> None:
        """caller: a name that no other process has."""
        self._workers = {name: HostWorker(name, caller, connect) for name in names}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._found = asyncio.Event()

    async def best(self, wait_s: float) -> HostWorker:
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

    async def _watch(self, worker: HostWorker) -> None:
        while True:
            if is_there := await worker.look():
                self._found.set()
            await asyncio.sleep(HEAR_S if is_there else LOOK_S)


async def _leave(worker: HostWorker) -> None:
    try:
        await worker.call("leave", deadline_s=HEAR_WITHIN_S)
    except WorkerLost:
        return
