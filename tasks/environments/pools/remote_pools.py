"""Environments in the workers of the role environment, as the process of an engine sees them.

    reset ─▶ the worker where it is expected to wait least ─▶ step, step, ... ─▶ end
    a call ── the worker is lost ─▶ EnvironmentLost ─▶ reset, at another one

An episode stays with its worker. When the worker is lost, the environment is gone, and the player
of the episode gets EnvironmentLost and brings another environment to the same turn (`play`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from uuid import uuid4

from artifacts.episodes import Ending
from artifacts.records import pack, unpack
from tasks.cluster.actors import Remote
from tasks.environments.base import (
    EnvironmentFailed,
    EnvironmentLost,
    EnvironmentSettings,
    Transition,
)
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool_actor import CallResult
from tasks.environments.pools.pool_workers import (
    ANSWER_S,
    Call,
    PoolWorker,
    PoolWorkers,
    WorkerLost,
)

START_S = 120.0  # for what a reset may have started beside the environment: fork server and process
EXTRA_S = 30.0  # for messages of a call that wait behind others


@dataclass(slots=True, kw_only=True)
class RemoteEpisode:
    """One episode at a worker."""

    worker: PoolWorker
    name: str  # of the episode at its worker
    began_s: float  # on the monotonic clock
    state: bytes = b""  # of its environment after the last turn


class RemotePools:
    """`EnvironmentProcesses` in other workers. For the coroutines of one event loop."""

    def __init__(self, workers: PoolWorkers, config: EnvironmentProcessConfig) -> None:
        """config: that of the pools at the workers."""
        self._workers = workers
        self._config = config
        self._remote: dict[str, RemoteEpisode] = {}  # by episode
        self._numbers = count(1)
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def of(
        cls, run_id: str, engine: str, names: Sequence[str], config: EnvironmentProcessConfig
    ) -> RemotePools:
        """Make the pools for an engine. names: the workers of the role environment."""

        async def connect(name: str) -> Call:
            return (await asyncio.to_thread(Remote.connect, run_id, name)).call

        return cls(PoolWorkers(names, f"{engine}:{uuid4().hex[:8]}", connect), config)

    async def warm(self) -> None:
        """Connect to the workers; the flow has warmed them."""
        self._workers.watch()

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        """Begin an episode, or go on from a state, at the worker with the least expected wait; an
        episode of the same id is ended before. Raises EnvironmentLost if that worker is lost
        meanwhile."""
        await self.end(episode_id)
        worker = await self._workers.best(self._config.place_s)
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
        self._closing = asyncio.ensure_future(self._workers.close())

    async def _ask(
        self, episode_id: str, method: str, told: str | bytes, limit_s: float
    ) -> str | Transition | None:
        """Call the episode's worker. Raises as `EnvironmentProcesses.step`."""
        remote = self._remote.get(episode_id)
        if remote is None:
            raise EnvironmentFailed(Ending.CRASHED, "this pool knows no such episode")
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

    def _leave(self, episode_id: str) -> None:
        remote = self._remote.pop(episode_id, None)
        if remote is not None:
            held_s = time.monotonic() - remote.began_s
            remote.worker.view = remote.worker.view.ended(held_s)
