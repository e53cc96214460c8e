"""A joined cluster: one run at a time, and each in fresh processes without what the run before has
left."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.batched import BatchedSend

from tasks.cluster import ownership
from tasks.cluster.dask_cluster import SETTINGS, ClusterTooSmall, worker_addresses
from tasks.cluster.ownership import ClusterLost, check_scheduler, take_cluster, telling_of_its_loss

WORKERS = ("control",)


class Lingering:
    """An actor that its run never closed."""

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def cluster() -> Iterator[SpecCluster]:
    """A scheduler and one worker under a nanny."""
    scheduler = {
        "cls": Scheduler,
        "options": {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0"},
    }
    worker = {"cls": Nanny, "options": {"name": "control", "nthreads": 1, "memory_limit": 0}}
    with (
        dask.config.set(SETTINGS),
        SpecCluster(workers={"control": worker}, scheduler=scheduler, silence_logs=40) as cluster,
    ):
        yield cluster


def leave_an_actor(client: Client) -> int:
    """Publish one as a run does; the process that holds it."""
    future = client.submit(Lingering, actor=True)
    client.publish_dataset(future, name="rollflow/first/learner-0")
    pid: int = future.result(timeout=60).pid().result(timeout=60)
    return pid


def test_what_was_handed_to_tasks_does_not_stay_with_whoever_handed_it(
    cluster: SpecCluster,
) -> None:
    """Neither in the process of the flow, which is the client's and the scheduler's."""
    num_tasks = 60
    with Client(cluster) as client:
        for place in range(num_tasks):
            future = client.submit(id, bytes(5000) + bytes([place]), pure=False)
            assert future.result(timeout=60) > 0
            del future
        connections = [thing for thing in gc.get_objects() if type(thing) is BatchedSend]
        kept = [sent for connection in connections for sent in connection.recent_message_log]
    assert any(connection.batch_count >= num_tasks for connection in connections)
    handed = [sent for sent in kept if "compute-task" in str(sent)]
    assert 0 < len(handed) < num_tasks / 2, "it is about these messages, and few are kept"


async def test_a_scheduler_that_does_not_come_back_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "BACK_WITHIN_S", 0.0)
    await check_scheduler(SimpleNamespace(status="running"))  # type: ignore[arg-type]  # as much of a client as is asked
    for status in ("connecting", "closed"):
        with pytest.raises(ClusterLost, match="resume the run"):
            await check_scheduler(SimpleNamespace(status=status))  # type: ignore[arg-type]  # see above


def test_what_fails_because_the_scheduler_is_gone_says_so() -> None:
    gone, there = SimpleNamespace(status="closed"), SimpleNamespace(status="running")
    with pytest.raises(ClusterLost, match="resume the run"), telling_of_its_loss(gone):  # type: ignore[arg-type]  # see above
        raise RuntimeError("ConnectionPool closing.")
    with pytest.raises(RuntimeError, match="mine"), telling_of_its_loss(there):  # type: ignore[arg-type]  # see above
        raise RuntimeError("mine")


async def test_a_wait_for_the_run_before_leaves_the_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "POLL_S", 0.0)
    asked: list[float] = []
    turn = asyncio.Event()

    def run_on_scheduler(*args: object, callback_timeout: float) -> tuple[str, bool] | None:
        asked.append(callback_timeout)
        return ("first", True) if not turn.is_set() else None

    client: Any = SimpleNamespace(id="second", run_on_scheduler=run_on_scheduler)
    taking = asyncio.create_task(take_cluster(client, "second", WORKERS, 1.0))
    while not asked:
        await asyncio.sleep(0)
    turn.set()
    await taking
    assert set(asked) == {ownership.ANSWER_S}


async def test_a_scheduler_that_does_not_answer_is_named() -> None:
    def run_on_scheduler(*args: object, callback_timeout: float) -> None:
        raise TimeoutError(f"timed out after {callback_timeout} s.")

    scheduler = SimpleNamespace(address="tcp://far:8786")
    client: Any = SimpleNamespace(id="a", scheduler=scheduler, run_on_scheduler=run_on_scheduler)
    with pytest.raises(TimeoutError, match="tcp://far:8786 did not answer run_on_scheduler"):
        await take_cluster(client, "second", WORKERS, 1.0)


def test_a_cluster_is_taken_by_one_run_after_the_other(
    cluster: SpecCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "GONE_WITHIN_S", 0.0)
    with Client(cluster) as first:
        first.wait_for_workers(1, timeout=120)
        before = worker_addresses(first)
        asyncio.run(take_cluster(first, "first", WORKERS, 120.0))
        assert worker_addresses(first) == before
        pid = leave_an_actor(first)
        with (
            Client(cluster, set_as_default=False) as second,
            pytest.raises(ClusterTooSmall, match="works for first"),
        ):
            asyncio.run(take_cluster(second, "second", WORKERS, 120.0))
    monkeypatch.setattr(ownership, "GONE_WITHIN_S", 60.0)
    with Client(cluster) as third:
        asyncio.run(take_cluster(third, "third", WORKERS, 120.0))
        assert third.list_datasets() == ()
        assert third.submit(os.getpid, pure=False).result(timeout=60) != pid
