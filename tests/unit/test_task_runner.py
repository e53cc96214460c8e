"""Flow runs below the run's own: how tasks get to workers, and when Prefect learns of an end."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import cloudpickle
import pytest
from distributed.protocol import pickle as distributed_pickle
from prefect import task
from prefect.context import SettingsContext
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import task_runner
from flows.evaluate import evaluate
from flows.rl_step import rl_step
from flows.task_runner import ClusterTaskRunner, Named, loaded, on_cluster, settings_of
from tasks.reward import score_responses
from tasks.rollout import run_rollout
from tasks.train import accumulate_gradients

CLIENT: Any = object()  # Any: a client that nothing is submitted to


@pytest.mark.parametrize(
    "thing", [rl_step, evaluate, run_rollout, score_responses, accumulate_gradients]
)
def test_flows_and_tasks_are_sent_by_their_names(thing: Any) -> None:  # Any: a flow or a task
    named = Named.of(thing)
    assert named is not None
    sent = pickle.dumps(named)
    assert pickle.loads(sent).load() is thing
    assert len(sent) < 200


def test_a_task_that_no_module_has_is_sent_itself() -> None:
    @task
    def own() -> int:
        return 3

    assert Named.of(own) is None
    assert loaded(cloudpickle.loads(cloudpickle.dumps(own))).fn() == 3


def test_a_runner_takes_no_client_to_a_worker() -> None:
    runner = ClusterTaskRunner(CLIENT, b"settings")
    sent = pickle.loads(pickle.dumps(runner.duplicate()))
    with sent as started, pytest.raises(RuntimeError, match="must be started"):
        started.submit(run_rollout, {})


def test_a_flow_run_that_is_over_holds_no_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask runs a task again when the worker dies that has its result, if anybody wants it."""
    future = Mock()
    monkeypatch.setattr(task_runner, "_context_of_tasks", lambda: b"context")
    with ClusterTaskRunner(Mock(submit=Mock(return_value=future)), b"settings") as runner:
        runner.submit(run_rollout, {})
        future.release.assert_not_called()
    future.release.assert_called_once_with()


def test_tasks_run_in_the_settings_of_the_flow() -> None:
    """The settings are read once in a process, and entered by several threads at once."""
    with temporary_settings({PREFECT_API_URL: "http://far:4200/api"}):
        found = SettingsContext.get()
        assert found is not None
        sent = distributed_pickle.dumps(found.serialize())
    read = settings_of(sent)
    assert settings_of(sent) is read
    with read.model_copy(), read.model_copy():
        assert PREFECT_API_URL.value() == "http://far:4200/api"


def test_threads_that_need_settings_at_once_read_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefect's own cache of files breaks where two coordinators of a new worker read at once."""
    reading = threading.Lock()

    def read(**_: object) -> object:
        assert reading.acquire(blocking=False), "another one reads"
        time.sleep(0.05)
        reading.release()
        return object()

    monkeypatch.setattr(task_runner, "SettingsContext", read)
    pickled = [distributed_pickle.dumps({"of": name}) for name in ("one", "one", "other")]
    with ThreadPoolExecutor(len(pickled)) as threads:
        first, again, other = threads.map(settings_of, pickled)
    assert first is again
    assert other is not first


class Ends:
    """Engines of flow runs whose completion Prefect learns when it is let go on."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None
        self.answered = 0

    def engine(self, *, flow: object, parameters: dict[str, Any]) -> Ends:  # Any: passed on
        self.closing = asyncio.create_task(self._answer())
        return self

    async def _answer(self) -> None:
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        self.answered += 1

    @asynccontextmanager
    async def start(self) -> AsyncIterator[None]:
        yield

    def is_running(self) -> bool:
        return False

    async def result(self) -> str:
        return "report"


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    made = Ends()
    monkeypatch.setattr(task_runner, "SubflowRunEngine", made.engine)
    return made


@pytest.mark.parametrize("ending", ["success", "failure", "cancellation"])
async def test_prefect_learns_of_completed_runs_beside_what_follows_and_at_every_end(
    ends: Ends, ending: str
) -> None:
    async def run() -> None:
        async with on_cluster(CLIENT, rl_step) as (step,):
            assert await step("plan") == "report"
            assert ends.answered == 0, "the step's report does not wait for Prefect"
            asyncio.get_running_loop().call_later(0.05, ends.may_answer.set)
            if ending == "failure":
                raise RuntimeError("a learner was lost")
            if ending == "cancellation":
                await asyncio.Event().wait()

    running = asyncio.create_task(run())
    if ending == "cancellation":
        asyncio.get_running_loop().call_later(0.01, running.cancel)
    (error,) = await asyncio.gather(running, return_exceptions=True)
    expected = {"failure": RuntimeError, "cancellation": asyncio.CancelledError}
    assert type(error) is expected.get(ending, type(None))
    assert ends.answered == 1


async def test_a_run_does_not_go_on_when_prefect_refuses_the_end_of_a_step(ends: Ends) -> None:
    ends.failure = ConnectionError("Prefect is gone")
    ends.may_answer.set()

    async def run() -> None:
        async with on_cluster(CLIENT, rl_step) as (step,):
            await step("plan")
            await asyncio.sleep(0)
            await step("the next")
            raise AssertionError("the failure is raised by the next step")

    with pytest.raises(ConnectionError, match="gone"):
        await run()
