"""Looks at what the engines of a round have to do, and says which responses should move.

    look_s, or an elastic worker has joined ─▶ read every engine ─▶ loads ─▶ `balance` ─▶ moves

Nobody waits for it: an engine that does not answer in time is left out of the look, and what has
become of a response meanwhile is for whoever moves it to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from artifacts.records import Request
from tasks.engines.base import EngineLost, EngineStats
from tasks.rounds.engine_pool import EnginePool
from tasks.scheduling.balancing import (
    BalancingConfig,
    EngineLoad,
    MovableResponse,
    Move,
    Speeds,
    balance,
)

READING_S = 5.0  # the longest wait for an engine's reading


class Rebalancing:
    """Watches the engines of one round."""

    def __init__(
        self,
        config: BalancingConfig,
        dispatch: EnginePool,
        *,
        without_elastic_workers: bool = False,
    ) -> None:
        """without_elastic_workers: whether the run's own engines share among themselves, too."""
        self._config = config
        self._without_elastic_workers = without_elastic_workers
        self._dispatch = dispatch
        self._speeds = Speeds(config.keep_running)
        self._due: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_worthwhile(self) -> bool:
        """Whether there is an engine that should have a share: an elastic worker, or any if so
        planned."""
        is_wanted = self._without_elastic_workers or self._dispatch.has_elastic_workers
        return self._config.enabled and is_wanted

    def hurry(self) -> None:
        """A look is due at once."""
        if not self._due.done():
            self._due.set_result(None)

    async def look(self) -> list[Move]:
        """What should move, once a look is due; nothing if the elastic workers have left by
        then."""
        await asyncio.wait({self._due}, timeout=self._config.look_s)
        self._due = asyncio.get_running_loop().create_future()
        if not self.is_worthwhile:
            return []
        answers = await asyncio.gather(*map(self._reading, self._dispatch.router.in_service))
        readings = [reading for reading in answers if reading is not None]
        now_s = asyncio.get_running_loop().time()
        for reading in readings:
            num_running = len(reading.progress)
            self._speeds.look(reading.engine, num_running, reading.tokens_generated, now_s)
        return balance(self._config, self._loads(readings))

    async def _reading(self, name: str) -> EngineStats | None:
        """How the engine stands; None where it does not say. Its loss is told by `collect`."""
        try:
            return await asyncio.wait_for(self._dispatch.reading(name), READING_S)
        except (EngineLost, TimeoutError):
            return None

    def _loads(self, readings: list[EngineStats]) -> list[EngineLoad]:
        """What each of these engines has to do, those left out that were lost meanwhile."""
        visited = self._dispatch.visited()
        in_service = self._dispatch.router.in_service
        present = [reading for reading in readings if reading.engine in in_service]
        return [self._load(reading, visited) for reading in present]

    def _load(self, reading: EngineStats, visited: Mapping[str, frozenset[str]]) -> EngineLoad:
        """What the engine does not tell of has not come there yet, or is on its way back."""
        name, progress = reading.engine, reading.progress
        requests = self._dispatch.router.requests(name)
        closed = {request.response_id: self._closed_to(request) for request in requests}
        left = {
            request.response_id: request.max_new_tokens
            - progress.get(request.response_id, len(request.kept_tokens))
            for request in requests
        }
        responses = (
            MovableResponse(
                response_id=found,
                remaining_tokens=left[found],
                closed=visited[found] | closed[found],
            )
            for found in left
            if found in progress
        )
        return EngineLoad(
            engine=name,
            remaining_tokens=sum(left.values()),
            responses=tuple(responses),
            room=self._dispatch.router.room(name),
            tokens_per_s=self._speeds.of(name),
        )

    def _closed_to(self, request: Request) -> frozenset[str]:
        """The engines whose weights are too old for it."""
        router = self._dispatch.router
        return frozenset(name for name in router.in_service if not router.may_run(name, request))
