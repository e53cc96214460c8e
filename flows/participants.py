"""What takes part in a run beside its own engines and learners: environment hosts and elastic
workers, as lines for the terminal, tables in Prefect, and records for the page.

Pools of hosts that say nothing and a run without elastic workers cost nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from distributed import Client
from prefect.artifacts import acreate_table_artifact

from artifacts.reports.elastic_workers import elastic_worker_rows, elastic_workers_summary
from artifacts.reports.environment_processes import (
    PoolState,
    keep_pools,
    pools_summary,
    process_rows,
)
from artifacts.reports.summary import seeding_summary
from flows.prefect_pages import shown
from flows.run import OpenRun
from tasks.elastic.worker_advice import worker_advice
from tasks.elastic.worker_history import WorkerHistory
from tasks.environments.pools.status_board import reported_states
from tasks.metrics.step_cost import own_dollars_per_h
from tasks.progress import artifact_key

Figures = Sequence[Mapping[str, float]]  # the metrics of every committed step


class Participants:
    """Those of one run."""

    def __init__(self, run: OpenRun, history: WorkerHistory, client: Client) -> None:
        self._run = run
        self._history = history
        self._client = client
        self._key = artifact_key(run.context.run_id)

    def told(self, figures: Figures) -> str:
        """Environment hosts, elastic workers, the last step's seeding window, and how many elastic
        workers to hold, a line for each where there are any."""
        told = (
            pools_summary(self._pools()),
            elastic_workers_summary(self._history.rows),
            seeding_summary(figures),
            self._worker_advice(figures),
        )
        return "\n".join(filter(None, told))

    async def keep(self, figures: Figures) -> None:
        """All of them for the page, and as tables in Prefect."""
        await self._keep_pools()
        await self._keep_elastic_workers(figures)

    async def _keep_pools(self) -> None:
        """The states of environment hosts."""
        pools = await asyncio.to_thread(self._pools)
        if not pools:
            return
        await asyncio.to_thread(keep_pools, self._run.store, pools)
        artifact = acreate_table_artifact(
            table=process_rows(pools, time.time()),
            key=f"hosts-{self._key}",
            description=f"Environment processes of {self._run.context.run_id}:"
            f" {pools_summary(pools)}",
        )
        await shown(artifact)

    async def _keep_elastic_workers(self, figures: Figures) -> None:
        """Who generates that the run did not start."""
        await asyncio.to_thread(self._history.save)
        rows = self._history.rows
        if not rows:
            return
        told = (f"Elastic workers of {self._run.context.run_id}", seeding_summary(figures))
        artifact = acreate_table_artifact(
            table=elastic_worker_rows(rows, time.time()),
            key=f"elastic-workers-{self._key}",
            description=". ".join(filter(None, (*told, self._worker_advice(figures)))),
        )
        await shown(artifact)

    def _pools(self) -> tuple[PoolState, ...]:
        context = self._run.context
        return reported_states(self._client, context.run_id, context.environment_pools)

    def _worker_advice(self, figures: Figures) -> str:
        return worker_advice(figures, own_dollars_per_h(self._run.context))
