"""An actor whose process dies is accounted for in one sentence: which, by what signal, its last
words, what to try."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from distributed import Client
from distributed.core import Status

from tasks.cluster.actors import ActorLost
from tasks.cluster.dask_cluster import open_cluster
from tasks.cluster.devices import ClusterConfig
from tasks.cluster.registry import ActorRegistry
from tests.flows.dying_actors import Doomed, Healthy, ShortLived, Slow, Unlucky

pytestmark = pytest.mark.flow

WORKERS = {name: name for name in ("engine-0", "learner-0")}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    config = ClusterConfig(num_devices=1, roles="rollout: 0, learner: 0", dashboard_port=0)
    folder = tmp_path_factory.mktemp("cluster")
    with open_cluster(config, folder / "scratch", folder / "log", imports=("wave",)) as client:
        yield client


@pytest.fixture
def registry(client: Client) -> Iterator[ActorRegistry]:
    registry = ActorRegistry(client, "run")
    yield registry
    registry.close()


def test_workers_are_forked_from_one_process_that_has_imported_for_all(client: Client) -> None:
    (parent,) = set(client.run(os.getppid).values())
    assert parent != os.getpid()
    assert set(client.run(lambda: "wave" in sys.modules).values()) == {True}


def test_every_process_has_the_name_of_its_worker(client: Client) -> None:
    numbers = client.run(os.getpid).values()
    names = {psutil.Process(number).name() for number in numbers}
    assert names == {"control", *WORKERS}


def test_an_actor_that_dies_of_its_building_ends_in_one_sentence(registry: ActorRegistry) -> None:
    with pytest.raises(ActorLost) as lost:
        registry.create_all(WORKERS, {"engine-0": (Doomed, (signal.SIGILL,))}, deadline_s=120)
    said = str(lost.value)
    assert said.startswith("engine-0 died while it was built: its process was killed by SIGILL; it")
    assert "Fatal Python error: Illegal instruction" in said
    assert "rollflow doctor" in said
    assert "\n" not in said


def test_a_worker_that_is_killed_once_while_it_builds_costs_no_start(
    registry: ActorRegistry, tmp_path: Path
) -> None:
    recipes = {
        "engine-0": (Unlucky, (str(tmp_path / "died"),)),
        "learner-0": (Healthy, ()),
    }
    registry.create_all(WORKERS, recipes, deadline_s=120)
    assert registry.names == set(WORKERS)
    assert registry.accounts() == ()


def test_an_actor_that_is_killed_while_others_are_still_built_costs_no_start(
    registry: ActorRegistry, tmp_path: Path
) -> None:
    recipes = {
        "engine-0": (Slow, (3.0,)),
        "learner-0": (ShortLived, (str(tmp_path / "died"),)),
    }
    registry.create_all(WORKERS, recipes, deadline_s=120)
    assert registry.names == set(WORKERS)
    assert registry.accounts() == ()


async def test_an_actor_that_dies_in_a_call_is_accounted_for(registry: ActorRegistry) -> None:
    recipes = dict.fromkeys(WORKERS, (Healthy, ()))
    registry.create_all(WORKERS, recipes, deadline_s=120)
    with pytest.raises(ActorLost, match="learner-0 was lost during die"):
        await registry.remote("learner-0").call("die", signal.SIGKILL, deadline_s=60)
    (said,) = registry.accounts()
    assert said.startswith("learner-0 is lost: its process was killed by SIGKILL; it wrote last: ")
    assert "the last thing I say" in said
    assert "want of memory" in said


def test_a_worker_that_is_killed_again_while_it_starts_is_heard_of_in_the_end(
    client: Client,
) -> None:
    nanny = client.cluster.workers["engine-0"]

    def wait_for(holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < ends
            time.sleep(0.001)

    for _ in range(8):
        killed = nanny.pid
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda killed=killed: nanny.pid not in (None, killed))
    wait_for(lambda: nanny.process.status is Status.running)


async def test_a_killed_fork_server_takes_the_workers_along_and_all_come_back(
    registry: ActorRegistry,
) -> None:
    recipes = dict.fromkeys(WORKERS, (Healthy, ()))
    registry.create_all(WORKERS, recipes, deadline_s=120)
    before = await registry.remote("learner-0").call("process", deadline_s=60)
    server = psutil.Process(before).parent()
    assert server is not None
    assert server.pid != os.getpid()
    server.kill()
    await asyncio.to_thread(psutil.wait_procs, [psutil.Process(before)], 60)
    assert set(await registry.lost()) == set(WORKERS)
    await asyncio.to_thread(registry.restart_living, list(WORKERS), 120)
    await asyncio.to_thread(registry.create_all, WORKERS, recipes, 120)
    assert await registry.lost() == ()
    assert await registry.remote("learner-0").call("process", deadline_s=60) != before
