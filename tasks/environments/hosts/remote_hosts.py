"""Environments in the workers of the role environment, as the process of an engine sees them.

    reset ─▶ the worker where it is expected to wait least ─▶ step, step, ... ─▶ end
    step ── the worker is lost ─▶ its state, or the recorded turns, at another one ─▶ the step

An episode stays with its worker. When that is lost, the episode goes on at another: from the state
of its environment, or, where there is none, led to where it was, for the same seed and the same
actions give the same transcript. One whose environment says something else there has failed, for
which nobody but the infrastructure is to blame.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from uuid import uuid4

from artifacts.episodes import Ending
from artifacts.records import pack, unpack
from tasks.cluster.actors import Remote
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.hosts.config import HostConfig
from tasks.environments.hosts.host_actor import Answer
from tasks.environments.hosts.host_workers import (
    HEAR_WITHIN_S,
    HostWorker,
    HostWorkers,
    WorkerLost,
)

LOG = logging.getLogger(__name__)
COMPARED = 4  # fields of a transition: all but the details
MAX_LOST = 3  # workers that an episode may lose
START_S = 120.0  # for what a reset may have started beside the environment: fork server and process
EXTRA_S = 30.0  # for messages of a call that wait behind others


@dataclass(slots=True, kw_only=True)
class Seat:
    """Where an episode is, and what it takes to lead another environment to where it is."""

    settings: EnvironmentSettings
    seed: int
    name: str = ""  # at its worker
    worker: HostWorker | None = None  # None between two
    began_s: float = 0.0
    num_lost: int = 0  # workers
    first: str | None = None  # what the reset said; None if it went on from a state
    state: bytes = b""  # of its environment after the last turn
    turns: list[tuple[str, Transition]] = field(default_factory=list)  # actions with their answers


class RemoteHosts:
    """`EnvironmentHosts` in other workers. For the coroutines of one event loop."""

    def __init__(self, workers: HostWorkers, config: HostConfig) -> None:
        """config: of the pools there."""
        self._workers = workers
        self._config = config
        self._seats: dict[str, Seat] = {}  # by episode
        self._numbers = count(1)
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, run_id: str, engine: str, names: Sequence[str], config: HostConfig) -> RemoteHosts:
        """Of an engine in a Dask worker; names: of the workers of environments."""
        caller = f"{engine}:{uuid4().hex[:8]}"
        return cls(HostWorkers(names, caller, partial(_connect, run_id)), config)

    async def warm(self) -> None:
        """Look for the workers; that they are ready is up to who made them."""
        self._workers.watch()

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        """Begin an episode, or go on from a state, where it is expected to wait least; one of the
        same id is ended before."""
        await self.end(episode_id)
        seat = self._seats[episode_id] = Seat(settings=settings, seed=seed, state=state)
        try:
            seat.first = await self._begin(episode_id, seat)
        except EnvironmentFailed:
            self._leave(episode_id)
            raise
        return seat.first

    async def step(self, episode_id: str, text: str) -> Transition:
        """Take a turn; at another worker if its own is lost."""
        seat = self._seats.get(episode_id)
        if seat is None:
            raise EnvironmentFailed(Ending.CRASHED, "these hosts know no such episode")
        try:
            transition = await self._step(episode_id, seat, text)
        except EnvironmentFailed:
            self._leave(episode_id)
            raise
        seat.turns.append((text, transition))
        return transition

    def snapshot(self, episode_id: str) -> bytes:
        """The episode's environment after its last step."""
        seat = self._seats.get(episode_id)
        return seat.state if seat is not None else b""

    async def end(self, episode_id: str) -> None:
        """Give the episode's process back."""
        seat = self._seats.get(episode_id)
        if seat is None:
            return
        worker, name = seat.worker, seat.name
        self._leave(episode_id)
        if worker is None:
            return
        try:
            load = unpack(await worker.call("end", name, deadline_s=HEAR_WITHIN_S))
        except WorkerLost:
            return
        worker.view = worker.view.told(load)

    def close(self) -> None:
        """End every episode, without waiting."""
        self._seats.clear()
        self._closing = asyncio.ensure_future(self._workers.close())

    async def _begin(self, episode_id: str, seat: Seat) -> str | None:
        """Reset at some worker, or go on there from the state; another one if that is lost
        meanwhile."""
        while True:
            seat.worker = await self._workers.best(self._config.place_s)
            seat.worker.view = seat.worker.view.begun()
            seat.name = f"{episode_id}#{next(self._numbers)}"
            seat.began_s = time.monotonic()
            payload = pack((seat.settings, seat.seed, seat.state))
            limit_s = self._config.place_s + self._config.reset_s + START_S
            try:
                said = await self._ask(seat, "reset", payload, limit_s)
                assert not isinstance(said, Transition), "that is the answer to a step"
                return said
            except WorkerLost as error:
                self._lose(episode_id, seat, error)

    async def _step(self, episode_id: str, seat: Seat, text: str) -> Transition:
        while True:
            try:
                if seat.worker is None:
                    await self._repeat(episode_id, seat)
                return await self._take_turn(seat, text)
            except WorkerLost as error:
                self._lose(episode_id, seat, error)

    async def _repeat(self, episode_id: str, seat: Seat) -> None:
        """Bring another environment to where the episode is."""
        said = await self._begin(episode_id, seat)
        if said is None:
            return
        is_same = said == seat.first
        for text, before in seat.turns:
            if not is_same:
                break
            is_same = (await self._take_turn(seat, text))[:COMPARED] == before[:COMPARED]
        if not is_same:
            assert seat.worker is not None
            await self.end(episode_id)
            raise EnvironmentFailed(
                Ending.CRASHED,
                "its worker was lost, and elsewhere it says something else than before",
            )

    async def _take_turn(self, seat: Seat, text: str) -> Transition:
        worker = seat.worker
        assert worker is not None
        started_s = time.monotonic()
        transition = await self._ask(seat, "step", text, self._config.step_s)
        assert isinstance(transition, Transition)
        worker.view = worker.view.stepped(time.monotonic() - started_s)
        return transition

    async def _ask(
        self, seat: Seat, method: str, told: str | bytes, limit_s: float
    ) -> str | Transition | None:
        """Call its worker. Raises EnvironmentFailed, and WorkerLost if nobody there knows the
        episode."""
        worker = seat.worker
        assert worker is not None
        payload = await worker.call(method, seat.name, told, deadline_s=limit_s + EXTRA_S)
        answer: Answer = unpack(payload)
        worker.view = worker.view.told(answer.load)
        if answer.ending is not None:
            raise EnvironmentFailed(answer.ending, answer.detail)
        if answer.is_unknown:
            raise WorkerLost(f"{worker.name} has begun anew and knows nothing of it")
        seat.state = answer.state
        return answer.value

    def _lose(self, episode_id: str, seat: Seat, error: WorkerLost) -> None:
        """Its worker is gone. Raises EnvironmentFailed if it has lost too many."""
        if seat.worker is not None:
            seat.worker.view = seat.worker.view.ended()
            seat.worker.abandoned.append(seat.name)
        seat.worker = None
        seat.num_lost += 1
        LOG.warning(
            "episode=%s loses its worker of environments for the %d. time: %s",
            episode_id,
            seat.num_lost,
            error,
        )
        if seat.num_lost > MAX_LOST:
            raise EnvironmentFailed(
                Ending.CRASHED, f"its workers of environments were lost {seat.num_lost} times"
            ) from error

    def _leave(self, episode_id: str) -> None:
        """It is at no worker any more."""
        seat = self._seats.pop(episode_id, None)
        if seat is not None and seat.worker is not None:
            held_s = time.monotonic() - seat.began_s
            seat.worker.view = seat.worker.view.ended(held_s)


async def _connect(run_id: str, name: str) -> Remote:
    return await asyncio.to_thread(Remote.connect, run_id, name)
