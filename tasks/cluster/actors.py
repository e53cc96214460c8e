"""Long-lived actors on named workers, with generations, and calls to them that never wait for ever.

    registry.create_all(workers, recipes, deadline_s)   in the flow
    remote = Remote.connect(run_id, "engine-0")         in a task on any worker
    await remote.call("submit", payload, deadline_s=30)

Dask never revives a lost actor under its key, so every creation gets a new generation; and its resources reserve nothing for
actors, so placement is by worker name. Payloads are bytes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Client, get_client

from tasks.cluster.dask_cluster import worker_addresses


class ActorLost(RuntimeError):
    """The actor's worker died or does not answer; a new generation must be created."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A caller's view of one actor."""

    name: str
    actor: Any  # Any: Dask's proxy resolves methods at run time
    loop: asyncio.AbstractEventLoop  # the event loop that Dask's communication runs on

    @classmethod
    def connect(cls, run_id: str, name: str) -> Remote:
        """The current generation of an actor; works in the flow's process and in tasks. Raises ActorLost if it is gone."""
        client = get_client()
        try:
            actor = client.get_dataset(_published(run_id, name)).result(timeout=30)
        except (KeyError, RuntimeError, OSError, TimeoutError) as error:
            raise ActorLost(f"{name} is not there: {_reason(error)}") from error
        return cls(name, actor, client.loop.asyncio_loop)

    async def call(self, method: str, *args: object, deadline_s: float) -> Any:  # Any: whatever the method returns
        """Call a method from any event loop. Raises ActorLost when the worker is gone, TimeoutError after deadline_s."""
        try:
            pending = getattr(self.actor, method)(*args)
            answer = asyncio.run_coroutine_threadsafe(_await(pending), self.loop)
            async with asyncio.timeout(deadline_s):
                return await asyncio.wrap_future(answer)
        except TimeoutError as error:
            raise TimeoutError(f"{self.name}.{method} did not answer within {deadline_s:.0f} s") from error
        except (OSError, RuntimeError) as error:
            if _means_lost(error):
                raise ActorLost(f"{self.name} was lost during {method}: {_reason(error)}") from error
            raise


async def _await(pending: Awaitable[Any]) -> Any:  # Any: see Remote.call
    return await pending


def _means_lost(error: Exception) -> bool:
    return "Actor" in str(error) and ("lost" in str(error) or "contact" in str(error))


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _published(run_id: str, name: str) -> str:
    return f"rollflow/{run_id}/{name}"


class ActorRegistry:
    """The run's actors by name, kept by the flow: which generation lives where."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._futures: dict[str, Any] = {}  # Any: Dask futures
        self._actors: dict[str, Any] = {}  # Any: Dask's proxies
        self._addresses: dict[str, str] = {}
        self._generation: dict[str, int] = {}

    def create_all(
        self, workers: Mapping[str, str], actors: Mapping[str, tuple[Callable[..., object], tuple[object, ...]]], deadline_s: float
    ) -> None:
        """Start several actors side by side. Raises the constructor's own error, or TimeoutError with the name still missing."""
        ends = time.monotonic() + deadline_s
        for name, (factory, args) in actors.items():
            self._submit(name, factory, args, self._address(workers[name], ends))
        for name, (factory, args) in actors.items():
            while not self._is_ready(name):
                if time.monotonic() > ends:
                    raise TimeoutError(f"{name} was not ready within {deadline_s:.0f} s on worker {workers[name]}")
                address = self._address(workers[name], ends)
                if address != self._addresses[name]:  # the worker died under it and came back
                    self._submit(name, factory, args, address)
            self._client.publish_dataset(self._futures[name], name=_published(self._run_id, name), override=True)

    def _is_ready(self, name: str) -> bool:
        try:
            self._actors[name] = self._futures[name].result(timeout=0.5)
        except TimeoutError:
            return False
        except RuntimeError as error:
            if _means_lost(error):
                return False
            raise
        return True

    def _submit(self, name: str, factory: Callable[..., object], args: tuple[object, ...], address: str) -> None:
        self.discard(name)
        generation = self._generation[name] = self._generation.get(name, 0) + 1
        key = f"{self._run_id}-{name}-g{generation}-{time.time_ns():x}"
        options = {"actor": True, "workers": [address], "allow_other_workers": False, "pure": False}
        self._futures[name] = self._client.submit(factory, *args, key=key, **options)
        self._addresses[name] = address

    def _address(self, worker: str, ends: float) -> str:
        """The worker's address now; a restarted worker keeps its name and gets a new one."""
        while True:
            addresses = worker_addresses(self._client)
            if worker in addresses:
                return addresses[worker]
            if time.monotonic() > ends:
                raise TimeoutError(f"worker {worker} did not come back in time; alive: {', '.join(sorted(addresses)) or 'none'}")
            time.sleep(0.2)

    @property
    def names(self) -> frozenset[str]:
        """The actors that were ready once and not discarded; some of them may be lost."""
        return frozenset(self._actors)

    def environment(self, workers: Sequence[str], variable: str) -> tuple[str, ...]:
        """What an environment variable is on each of these workers, empty where it is not set."""
        addresses = worker_addresses(self._client)
        asked = [addresses[name] for name in workers]
        values: dict[str, str] = self._client.run(os.environ.get, variable, "", workers=asked)
        return tuple(values[address] for address in asked)

    async def lost(self) -> tuple[str, ...]:
        """Names of the actors that do not answer a ping (every actor class has an async ping())."""
        names = tuple(self._actors)
        answers = await asyncio.gather(*(self._answers(name) for name in names))
        return tuple(name for name, answered in zip(names, answers, strict=True) if not answered)

    async def _answers(self, name: str) -> bool:
        try:
            await self.remote(name).call("ping", deadline_s=20)
        except (RuntimeError, TimeoutError):  # gone, or it says itself that it cannot go on
            return False
        return True

    def remote(self, name: str) -> Remote:
        """The flow's own handle on an actor; works on any event loop."""
        return Remote(name, self._actors[name], self._client.loop.asyncio_loop)

    def restart(self, workers: Sequence[str], deadline_s: float) -> None:
        """Give these workers new processes; what they held is gone. Needs workers under a nanny, which is Dask's default."""
        addresses = worker_addresses(self._client)
        there = [addresses[name] for name in workers if name in addresses]
        if there:
            self._client.restart_workers(there, timeout=deadline_s)

    def discard(self, name: str) -> None:
        """Forget an actor, alive or not; call its close() before if it holds processes."""
        future = self._futures.pop(name, None)
        self._actors.pop(name, None)
        if future is None:
            return
        if _published(self._run_id, name) in self._client.list_datasets():
            self._client.unpublish_dataset(_published(self._run_id, name))
        self._client.cancel([future], force=True)

    def close(self) -> None:
        """Forget every actor."""
        for name in list(self._futures):
            self.discard(name)
