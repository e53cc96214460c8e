"""Runs a flow's Prefect tasks on a Dask cluster: submits them at low cost, and waits for results.

    flow ──on_cluster──▶ flow with tasks on this cluster ──submit──▶ Dask ──result_of──▶ result

Each part of Prefect 3.7 and prefect-dask 0.3 that is replaced here took time of every step in which
no device had work: a Dask client of its own for each flow run, nine requests to begin and end one,
and submissions that look for futures in all arguments and pickle flow, task and the flow's
parameters each time. A thread pool of its own waits for results: asyncio's has four threads more
than there are cores, and a wait takes one for a round.
"""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Self
from uuid import UUID, uuid4

from distributed import Client
from distributed.protocol import pickle
from prefect import Flow, State, Task
from prefect._internal.engine import resolve_custom_flow_run_name
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas import FlowRun
from prefect.context import FlowRunContext, SettingsContext, TagsContext
from prefect.flow_engine import AsyncFlowRunEngine
from prefect.states import Running
from prefect.task_engine import run_task_sync
from prefect.utilities.callables import get_call_parameters
from prefect.utilities.engine import propose_state
from prefect_dask.task_runners import DaskTaskRunner, PrefectDaskFuture

# a thread per wait: four for a step, two for an evaluation, one for each round that overlaps
THREADS = ThreadPoolExecutor(64, thread_name_prefix="results")
_reading = threading.Lock()


@dataclass(frozen=True, slots=True)
class Named:
    """A Prefect flow or task by its place in a module, which a worker imports."""

    module: str
    name: str

    @classmethod
    def of(cls, thing: Any) -> Self | None:  # Any: a flow or a task
        """The place of a flow or task; None if its function is not that of a module's own one."""
        module, name = thing.fn.__module__, thing.fn.__name__
        found = getattr(sys.modules.get(module), name, None)
        return cls(module, name) if getattr(found, "fn", None) is thing.fn else None

    def load(self) -> Any:  # Any: as in `of`
        return getattr(import_module(self.module), self.name)


class ClusterTaskRunner(DaskTaskRunner):  # type: ignore[misc]  # it has no types
    """Task runner that submits every task as a Dask computation of its own, by a client that others
    made and close. Tasks must be synchronous, and wait for no others. On a worker, where a flow's
    runner comes with the context of a task, it submits none."""

    def __init__(self, cluster_client: Client | None = None, settings: bytes = b"") -> None:
        """settings: Prefect's, pickled, in which tasks run."""
        super().__init__()
        self._cluster_client, self._settings = cluster_client, settings
        self._context = b""  # that of the flow run, pickled with its first task

    def duplicate(self) -> ClusterTaskRunner:
        """The runner of one more flow run."""
        return ClusterTaskRunner(self._cluster_client, self._settings)

    def __reduce__(self) -> tuple[type[ClusterTaskRunner], tuple[()]]:
        return ClusterTaskRunner, ()

    def submit(
        self,
        task: Task[..., Any],  # Any: whatever a task returns
        parameters: dict[str, Any],
        wait_for: Iterable[Any] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> PrefectDaskFuture[Any]:
        """Submit a task. Raises RuntimeError outside of a flow, or without a client."""
        if not self._started or self._cluster_client is None:
            raise RuntimeError("a task runner must be started before work is submitted")
        assert not wait_for, "tasks of a step wait for each other in the sample buffer"
        task_run_id = uuid4()
        self._context = self._context or _context_of_tasks()
        future = self._cluster_client.submit(
            run_on_worker,
            Named.of(task) or task,
            self._settings,
            self._context,
            parameters,
            task_run_id,
            dependencies,
            key=f"{task.name}-{task_run_id}",
            pure=False,
        )
        # a task that is over runs again with its worker's death while anybody holds its future
        self._exit_stack.callback(future.release)
        return PrefectDaskFuture[Any](wrapped_future=future, task_run_id=task_run_id)


def _context_of_tasks() -> bytes:
    """Pickle the context that Prefect gives tasks of the current flow run, without the run's
    parameters, as every task has its own, and without settings."""
    context, tags = FlowRunContext.get(), TagsContext.get()
    assert context is not None, "tasks are submitted in a flow"
    flow_run = context.model_copy(update={"parameters": {}}).serialize()
    flow_run["flow"] = Named.of(context.flow) or context.flow
    pickled: bytes = pickle.dumps({"flow_run_context": flow_run, "tags_context": tags.serialize()})
    return pickled


def settings_of(pickled: bytes) -> SettingsContext:
    """The settings of Prefect that a flow pickled."""
    with _reading:
        return _read_settings(pickled)


@lru_cache(maxsize=4)
def _read_settings(pickled: bytes) -> SettingsContext:
    """Takes 0.04 s of a core. One thread at a time: Prefect's cache of files, which a worker
    inherits and finds expired, raises KeyError in one of two threads."""
    return SettingsContext(**pickle.loads(pickled))


def run_on_worker(
    task: Named | Task[..., Any],  # Any: as in `ClusterTaskRunner.submit`
    settings: bytes,
    context: bytes,
    parameters: dict[str, Any],
    task_run_id: UUID,
    dependencies: dict[str, set[Any]] | None,
) -> State[Any]:
    """Run a task as Prefect does, on a worker of Dask; returns its final state."""
    serialized = pickle.loads(context)
    flow_run = serialized["flow_run_context"]
    flow_run["flow"] = loaded(flow_run["flow"])
    with settings_of(settings).model_copy():  # a context cannot be entered twice
        state = run_task_sync(
            loaded(task),
            task_run_id=task_run_id,
            parameters=parameters,
            return_type="state",
            dependencies=dependencies,
            context=serialized,
        )
    assert isinstance(state, State), "the return type that was asked for"
    return state


def loaded(thing: Any) -> Any:  # Any: a flow or task, or the name of one
    return thing.load() if isinstance(thing, Named) else thing


class SubflowRunEngine(AsyncFlowRunEngine[..., Any]):  # Any: whatever the flow returns
    """Engine of a subflow run whose flow waits for four requests to Prefect, not for nine: a run is
    created under its name and running, and its completion is reported beside what follows."""

    closing: asyncio.Task[State[Any]] | None = None  # the report of its completion

    async def create_flow_run(self, client: PrefectClient) -> FlowRun:
        """Create the run below the current flow run. No earlier run is looked for: each attempt at
        a step is a run of its own."""
        flow, parameters = self.flow, self.parameters or {}
        tracking = Task(name=flow.name, fn=flow.fn, version=flow.version)
        vars(tracking)["_is_subflow_tracking_task"] = True
        # its inputs would be the futures among the parameters: there are none
        parent = await tracking.create_run(client, flow_run_context=FlowRunContext.get())
        self._flow_run_name_set = True
        return await client.create_flow_run(
            flow,
            name=resolve_custom_flow_run_name(flow, parameters),
            parameters=flow.serialize_parameters(parameters),
            state=Running(),
            parent_task_run_id=parent.id,
            tags=TagsContext.get().current_tags,
        )

    async def begin_run(self) -> State[Any]:
        """Do nothing: the run is created in its state "running"."""
        return self.state

    async def set_state(self, state: State[Any], force: bool = False) -> State[Any]:
        """Propose a state to Prefect, and wait for its answer unless the state is "completed"."""
        if not state.is_completed() or self.flow_run is None:
            return await super().set_state(state, force)
        # the engine, whose own method needs its client, may be over before Prefect answers
        answer = propose_state(self.client, state, self.flow_run.id, force)
        self.closing = asyncio.create_task(answer)
        self.flow_run.state = state
        self._telemetry.update_state(state)
        return state


class ClusterFlow:
    """A flow whose runs are parts of the current flow run, with their tasks on a cluster."""

    def __init__(self, flow: Flow[..., Any], client: Client) -> None:
        # with_options would derive the schema of the parameters again
        self._flow = copy.copy(flow)
        settings = SettingsContext.get()
        assert settings is not None, "Prefect always has some"
        self._flow.task_runner = ClusterTaskRunner(client, pickle.dumps(settings.serialize()))
        self._closing: set[asyncio.Task[State[Any]]] = set()  # of runs that are over

    async def __call__(self, *parameters: Any) -> Any:  # Any: whatever the flow takes and returns
        """Run the flow; returns its result, or raises its error. Prefect may learn later that the
        run is completed: a failure of that report is raised by a later call, or by `settled`."""
        await self._raise_failures()
        named = get_call_parameters(self._flow.fn, parameters, {})
        engine = SubflowRunEngine(flow=self._flow, parameters=named)
        async with engine.start():
            while engine.is_running():
                async with engine.run_context():
                    _ = await engine.call_flow_fn()
        if engine.closing is not None:
            self._closing.add(engine.closing)
        return await engine.result()

    async def settled(self) -> None:
        """Wait until Prefect knows of every run that is over. Raises the failure of a report."""
        if self._closing:
            await asyncio.wait(self._closing)
        await self._raise_failures()

    async def _raise_failures(self) -> None:
        over = {closing for closing in self._closing if closing.done()}
        self._closing -= over
        for closing in over:
            await closing


@asynccontextmanager
async def on_cluster(client: Client, *flows: Flow[..., Any]) -> AsyncIterator[list[ClusterFlow]]:
    """The flows with their tasks on the client's cluster; at the end of the block, also by a
    failure, Prefect knows of every run that is over. Any: whatever flows take and return."""
    placed = [ClusterFlow(flow, client) for flow in flows]
    try:
        yield placed
    except BaseException:
        await asyncio.gather(*(flow.settled() for flow in placed), return_exceptions=True)
        raise
    for flow in placed:
        await flow.settled()


async def result_of(future: Any) -> Any:  # Any: a Prefect future, and what it holds
    """Wait for a submitted task; returns its result or raises its error."""
    run = copy_context().run  # Prefect keeps the current flow run in the context
    return await asyncio.get_running_loop().run_in_executor(THREADS, run, future.result)
