"""A pool that tells its state on the Dask scheduler, where the flow reads it for page, table and
terminal.

    pool ── every few seconds ──▶ scheduler's metadata ──▶ flow

What a lost worker said last stays there with its time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable

from distributed import Client, get_client

from artifacts.reports.environment_processes import PoolState, ProcessStatus, from_json, to_json
from tasks.environments.base import EnvironmentSettings, Transition
from tasks.environments.pools.pool import EnvironmentPool

LOG = logging.getLogger(__name__)
TELL_S = 5.0
MAX_HOSTS = 200  # that are told of one by one, those that failed first


def _set_metadata(key: list[str], text: str) -> None:
    get_client().set_metadata(key, text)


class ReportingPool:
    """`EnvironmentProcesses` of a pool, which tells from `warm` on."""

    def __init__(
        self,
        pool: EnvironmentPool,
        run_id: str,
        name: str,
        tell: Callable[[list[str], str], None] = _set_metadata,
    ) -> None:
        """name: of the worker that holds the pool. tell: what to do with a key and a text."""
        self._pool = pool
        self._key, self._name = _key(run_id, name), name
        self._tell = tell
        self._telling: asyncio.Task[None] | None = None

    async def warm(self) -> None:
        await self._pool.warm()
        if self._telling is None:
            self._telling = asyncio.create_task(self._keep_telling())

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        return await self._pool.reset(episode_id, settings, seed, state)

    async def step(self, episode_id: str, text: str) -> Transition:
        return await self._pool.step(episode_id, text)

    def snapshot(self, episode_id: str) -> bytes:
        return self._pool.snapshot(episode_id)

    async def end(self, episode_id: str) -> None:
        await self._pool.end(episode_id)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        self._pool.close()

    async def _keep_telling(self) -> None:
        """Tell again and again. A state that nobody hears of costs no episode."""
        while True:
            text = to_json(state_of(self._pool, self._name))
            try:
                await asyncio.to_thread(self._tell, self._key, text)
            except Exception as error:  # whatever a scheduler that is busy or gone makes of it
                LOG.warning("state of environment hosts not told: %s", error)
            await asyncio.sleep(TELL_S)


def state_of(pool: EnvironmentPool, name: str) -> PoolState:
    """What a pool is and did."""
    report, load, now_s = pool.report(), pool.load, time.time()
    told = sorted(pool.records(), key=lambda host: -host.num_failures)[:MAX_HOSTS]
    return PoolState(
        name=name,
        machine=socket.gethostname(),
        reported_s=now_s,
        num_places=load.num_places,
        num_waiting=load.num_waiting,
        num_episodes=report.episodes,
        num_steps=report.steps,
        num_crashed=report.crashed,
        num_unanswered=report.unanswered,
        num_restarts=report.restarts,
        num_late=report.late_answers,
        reset_p95_s=report.reset_times.quantile_s(0.95),
        step_p95_s=report.step_times.quantile_s(0.95),
        processes=tuple(
            ProcessStatus(
                number=host.number,
                state=host.state,
                for_s=now_s - host.since_s,
                age_s=None if host.started_s is None else now_s - host.started_s,
                episode=host.episode_id,
                kind=host.kind,
                num_steps=host.num_steps,
                mean_s=host.step_mean_s,
                p95_s=host.step_p95_s,
                num_restarts=host.num_restarts,
                last_failure=host.last_failure,
            )
            for host in sorted(told, key=lambda host: host.number)
        ),
    )


def reported_states(client: Client, run_id: str, names: Iterable[str]) -> tuple[PoolState, ...]:
    """What the pools of these workers said last, without those that never said anything."""
    texts = [client.get_metadata(_key(run_id, name), default=None) for name in names]
    return tuple(from_json(text) for text in texts if text is not None)


def _key(run_id: str, name: str) -> list[str]:
    """Where it is in the metadata, field by field."""
    return ["rollflow", run_id, "hosts", name]
