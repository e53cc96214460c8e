"""Runs a flow's Prefect tasks on a Dask cluster: submits them at low cost, and waits for results.

    flow ──on_cluster──▶ flow with tasks on this cluster ──submit──▶ Dask ──result_of──▶ result

In Prefect 3.7 and prefect-dask 0.3, `Flow.with_options` derives the schema of the flow's parameters
again (0.3 s of a core), and a submission is named by a digest of all its arguments: together a
sixth of the CPU time of the flow's process in a run of two steps. A thread pool of its own waits
for results: asyncio's has four threads more than there are cores, and a wait takes one for a round.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from prefect import Flow, Task
from prefect_dask.task_runners import DaskTaskRunner, PrefectDaskFuture

# a thread per wait: four for a step, two for an evaluation, one for each round that overlaps
THREADS = ThreadPoolExecutor(64, thread_name_prefix="results")


class ClusterTaskRunner(DaskTaskRunner):  # type: ignore[misc]  # it has no types
    """Task runner that submits every task as a Dask computation of its own."""

    def submit(
        self,
        task: Task[..., Any],  # Any: whatever a task returns
        parameters: dict[str, Any],
        wait_for: Iterable[Any] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> PrefectDaskFuture[Any]:
        """Submit a task as `DaskTaskRunner` does. Raises RuntimeError outside of a flow."""
        if not self._started:
            raise RuntimeError("a task runner must be started before work is submitted")
        future = self.client.submit(
            task,
            parameters=self._optimize_futures(parameters),
            wait_for=self._optimize_futures(wait_for) if wait_for else None,
            dependencies=dependencies,
            return_type="state",
            pure=False,
        )
        return PrefectDaskFuture[Any](wrapped_future=future, task_run_id=future.task_run_id)


def on_cluster(flow: Flow[..., Any], runner: ClusterTaskRunner) -> Flow[..., Any]:
    """Copy a flow so that `runner` runs its tasks. Any: whatever the flow takes and returns."""
    copied = copy.copy(flow)
    copied.task_runner = runner
    return copied


async def result_of(future: Any) -> Any:  # Any: a Prefect future, and what it holds
    """Wait for a submitted task; returns its result or raises its error."""
    run = copy_context().run  # Prefect keeps the current flow run in the context
    return await asyncio.get_running_loop().run_in_executor(THREADS, run, future.result)
