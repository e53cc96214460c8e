"""Readings of the engines of a round, and the moves of responses that follow from them.

    interval, or an elastic worker has joined ─▶ read every engine ─▶ loads ─▶ `balance` ─▶ moves

An engine that does not answer within `READING_S` is left out of the reading. The caller must check
where each response is by the time that it moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tasks.engines.base import EngineLost, EngineStats
from tasks.rounds.engine_pool import EnginePool, losses
from tasks.scheduling.balancing import (
    BalancingConfig,
    EngineLoad,
    MovableResponse,
    Move,
    Speeds,
    balance,
)
from tasks.scheduling.stream_training import RunningRequest

READING_S = 5.0  # the longest wait for an engine's reading


class Rebalancing:
    """Reads the engines of one round periodically and returns moves that even out their loads."""

    def __init__(
        self, config: BalancingConfig, pool: EnginePool, *, among_own: bool = False
    ) -> None:
        """among_own: whether responses also move between the run's own engines when no elastic
        worker is present."""
        self._config = config
        self._among_own = among_own
        self._pool = pool
        self._speeds = Speeds(config.keep_running)
        self._due: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_worthwhile(self) -> bool:
        """True if responses may move: balancing is enabled, and there are elastic workers or the
        run's own engines share among themselves."""
        is_wanted = self._among_own or self._pool.num_elastic_workers > 0
        return self._config.enabled and is_wanted

    def hurry(self) -> None:
        """Make a reading due at once."""
        if not self._due.done():
            self._due.set_result(None)

    async def next_moves(self) -> list[Move]:
        """The moves that follow from the next reading, once it is due; none if the elastic workers
        have left by then."""
        await asyncio.wait({self._due}, timeout=self._config.interval_s)
        self._due = asyncio.get_running_loop().create_future()
        if not self.is_worthwhile:
            return []
        answers = await asyncio.gather(*map(self._reading, self._pool.router.in_service))
        readings = [reading for reading in answers if reading is not None]
        now_s = asyncio.get_running_loop().time()
        for reading in readings:
            num_running = len(reading.progress)
            self._speeds.measure(reading.engine, num_running, reading.tokens_generated, now_s)
        visited = self._pool.visited()
        in_service = self._pool.router.in_service  # some may have been lost meanwhile
        present = [reading for reading in readings if reading.engine in in_service]
        return balance(self._config, [self._load(reading, visited) for reading in present])

    async def _reading(self, name: str) -> EngineStats | None:
        """The engine's reading; None if it does not answer. `collect` reports its loss."""
        try:
            return await asyncio.wait_for(self._pool.engines[name].stats(), READING_S)
        except (EngineLost, TimeoutError):
            return None

    def _load(self, reading: EngineStats, visited: Mapping[str, frozenset[str]]) -> EngineLoad:
        """The load of an engine. A request that its reading lacks has not come there yet, or is on
        its way back: it counts, and cannot be moved."""
        router, progress = self._pool.router, reading.progress
        remaining_tokens = 0
        responses: list[MovableResponse] = []
        for request in router.requests(reading.engine):
            num_tokens = progress.get(request.response_id, len(request.kept_tokens))
            left = request.max_new_tokens - num_tokens
            remaining_tokens += left
            if request.response_id in progress:
                # weights that are too old for it
                outdated = {name for name in router.in_service if not router.may_run(name, request)}
                responses.append(
                    MovableResponse(
                        response_id=request.response_id,
                        remaining_tokens=left,
                        closed=visited[request.response_id] | outdated,
                    )
                )
        return EngineLoad(
            engine=reading.engine,
            remaining_tokens=remaining_tokens,
            responses=tuple(responses),
            room=router.room(reading.engine),
            tokens_per_s=self._speeds.of(reading.engine),
        )


async def read_engines(
    pool: EnginePool,
) -> tuple[dict[str, int], tuple[RunningRequest, ...], dict[str, EngineLost]]:
    """Three parts: the KV-cache capacity in tokens of each own engine in service, the unfinished
    responses on these engines, and the engines found lost. Elastic workers are left out, because
    their capacity may be gone at any moment."""
    names = pool.own
    answers = await asyncio.gather(
        *(pool.engines[name].stats() for name in names), return_exceptions=True
    )
    lost = losses(names, answers)
    stats = [answer for answer in answers if isinstance(answer, EngineStats)]
    running = tuple(
        RunningRequest(
            engine=reading.engine,
            prompt_tokens=len(request.prompt_tokens),
            num_tokens=reading.progress[request.response_id],
            max_new_tokens=request.max_new_tokens,
        )
        for reading in stats
        for request in pool.router.requests(reading.engine)
        if request.response_id in reading.progress  # others are finished, and on their way back
    )
    return {reading.engine: reading.kv_tokens for reading in stats}, running, lost
