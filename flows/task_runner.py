"""Prefect tasks of a flow on a Dask cluster: submission at low cost, and waiting for results.

    flow ──on_cluster──▶ flow with tasks on this cluster ──submit──▶ Dask ──result_of──▶ result

With Prefect 3.7 and prefect-dask 0.3 `Flow.with_options` derives the schema of the flow's
parameters again, 0.3 s of a core each, and a submission names itself by a digest of all that it is
given, the flow among it, which is most of its time. Both together were a sixth of what the flow's
process computes in a run of two steps.

Results are waited for in threads of their own. asyncio has four threads more than there are cores,
and a wait takes one for as long as a round lasts: on two cores a step and an evaluation beside it
took all of them, and nobody replaced a lost worker or drew a picture meanwhile."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from prefect import Flow, Task
from prefect_dask.task_runners import DaskTaskRunner, PrefectDaskFuture

# as many as may wait: four for a step, two for an evaluation, one for each round that overlaps
THREADS = ThreadPoolExecutor(64, thread_name_prefix="results")


class ClusterTaskRunner(DaskTaskRunner):  # type: ignore[misc]  # it has no types
    """Submits every task as a computation of its own; equal submissions are never merged."""

    def submit(
        self,
        task: Task[..., Any],  # Any: whatever a task returns
        parameters: dict[str, Any],
        wait_for: Iterable[Any] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> PrefectDaskFuture[Any]:
        """Submit a task to Dask, as `DaskTaskRunner.submit` does. Raises RuntimeError outside of a
        flow."""
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
    """Copy of the flow whose tasks this runner runs. Any: whatever the flow takes and returns."""
    copied = copy.copy(flow)
    copied.task_runner = runner
    return copied


async def result_of(future: Any) -> Any:  # Any: a Prefect future, and what it holds
    """Wait for a submitted task; returns its result or raises its error."""
    run = copy_context().run  # Prefect keeps there which flow this is
    return await asyncio.get_running_loop().run_in_executor(THREADS, run, future.result)
