"""A pool that publishes its state on the Dask scheduler, where the flow reads it for page, table
and terminal.

    pool ── every few seconds ──▶ scheduler's metadata ──▶ flow
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable

from distributed import Client, get_client

from artifacts.reports.environment_processes import PoolState, from_json, to_json
from tasks.environments.base import EnvironmentSettings
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool import EnvironmentPool

LOG = logging.getLogger(__name__)
REPORT_S = 5.0
MAX_PROCESSES = 200  # that are listed one by one, those that failed first


class ReportingPool(EnvironmentPool):
    """A pool that publishes its state from `warm` to `close`."""

    def __init__(
        self,
        config: EnvironmentProcessConfig,
        settings: Iterable[EnvironmentSettings],
        run_id: str,
        name: str,
    ) -> None:
        """name: of the worker that holds the pool."""
        super().__init__(config, settings)
        self._key, self._name = _key(run_id, name), name
        self._reporting: asyncio.Task[None] | None = None

    async def warm(self) -> None:
        await super().warm()
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._keep_reporting())

    def close(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        super().close()

    async def _keep_reporting(self) -> None:

        def publish(text: str) -> None:
            get_client().set_metadata(self._key, text)

        while True:
            try:
                await asyncio.to_thread(publish, to_json(state_of(self, self._name)))
            except Exception as error:  # of a scheduler that is busy or gone
                LOG.warning("state of environment processes not published: %s", error)
            await asyncio.sleep(REPORT_S)


def state_of(pool: EnvironmentPool, name: str) -> PoolState:
    """Returns the state and the counts of a pool now."""
    report, load, now_s = pool.report, pool.load, time.time()
    listed = sorted(pool.slots, key=lambda slot: -slot.num_failures)[:MAX_PROCESSES]
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
            slot.status(now_s) for slot in sorted(listed, key=lambda slot: slot.number)
        ),
    )


def reported_states(client: Client, run_id: str, names: Iterable[str]) -> tuple[PoolState, ...]:
    """Returns the last published states of these workers' pools, without those that have none."""
    texts = [client.get_metadata(_key(run_id, name), default=None) for name in names]
    return tuple(from_json(text) for text in texts if text is not None)


def _key(run_id: str, name: str) -> list[str]:
    return ["rollflow", run_id, "hosts", name]
