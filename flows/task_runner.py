"""Prefect's task runner for Dask without what costs a run time and brings it nothing.

    a flow ──on_cluster──▶ the same, its tasks on this cluster ──submit──▶ Dask

With Prefect 3.7 and prefect-dask 0.3 `Flow.with_options` derives the schema of the flow's
parameters again, 0.3 s of a core each, and a submission names itself by a digest of all that it is
given, the flow among it, which is most of its time. Both together were a sixth of what the flow's
process computes in a run of two steps.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from prefect import Flow, Task
from prefect_dask.task_runners import DaskTaskRunner, PrefectDaskFuture


class ClusterTaskRunner(DaskTaskRunner):  # type: ignore[misc]  # it has no types
    """Every submission is a computation of its own: none is ever the same as another one."""

    def submit(
        self,
        task: Task[..., Any],  # Any: whatever a task returns
        parameters: dict[str, Any],
        wait_for: Iterable[Any] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> PrefectDaskFuture[Any]:
        """As there. Raises RuntimeError outside of a flow."""
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
    """The same flow, its tasks run by this runner. Any: whatever the flow takes and returns."""
    found = copy.copy(flow)
    found.task_runner = runner
    return found
