"""Environments in Dask workers of their own, with real walls: an episode can go on at another
worker when its own is killed, and the killed one comes back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from distributed import Client
from environment_pools import PATIENT, SCRIPT, failure, until
from scripted_environments import Script

from tasks.cluster.dask_cluster import open_cluster, worker_addresses
from tasks.cluster.devices import ClusterConfig
from tasks.cluster.registry import ActorRegistry
from tasks.environments.base import EnvironmentLost
from tasks.environments.pools.pool_actor import PoolActor, PoolKeeper
from tasks.environments.pools.remote_pools import Call, RemotePools
from tasks.environments.pools.status_board import reported_states

WORKERS = ("environment-0", "environment-1")
START_S = 300.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    roles = "rollout: 0, learner: 0, environment: 2"
    config = ClusterConfig(num_devices=1, roles=roles, dashboard_port=0, start_deadline_s=300)
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:  # where workers find the tests' environments
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with open_cluster(config, folder / "scratch", folder / "log", imports=("wave",)) as client:
            yield client


class Run:
    """As much of a run as keeps two workers of environments."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.registry = ActorRegistry(client, "run")
        self.keeper = PoolKeeper(WORKERS, self.registry.lost, self.make, max_remakes=8)

    async def make(self, names: tuple[str, ...]) -> None:
        recipes = {name: (PoolActor, (PATIENT, (SCRIPT,), "run", name)) for name in names}
        places = {name: name for name in names}
        await asyncio.to_thread(self.registry.create_all, places, recipes, START_S)
        for name in names:
            await self.registry.remote(name).call("warm", deadline_s=START_S)

    def hosts(self, engine: str) -> RemotePools:
        async def connect(name: str) -> Call:
            return self.registry.remote(name).call

        return RemotePools(WORKERS, engine, connect, PATIENT)

    def pid(self, name: str) -> int:
        address = worker_addresses(self.client)[name]
        found: dict[str, int] = self.client.run(os.getpid, workers=[address])
        return found[address]


@pytest.fixture
async def run(client: Client) -> AsyncIterator[Run]:
    made = Run(client)
    await made.make(WORKERS)
    yield made
    made.keeper.stop()
    for name in WORKERS:
        await made.registry.remote(name).call("close", deadline_s=60.0)
    made.registry.close()


def place_of(hosts: RemotePools, episode_id: str) -> str:
    worker = hosts._remote[episode_id].worker
    assert worker is not None
    return worker.name


async def test_a_killed_worker_costs_no_episode_and_comes_back(run: Run) -> None:
    hosts = run.hosts("engine-0")
    await hosts.warm()  # and then as many episodes as one worker has places
    for number in range(PATIENT.num_hosts):
        assert await hosts.reset(str(number), SCRIPT, number) == f"{number}:0"
        assert (await hosts.step(str(number), "")).observation == f"{number}:1"
    states = {number: hosts.snapshot(str(number)) for number in range(PATIENT.num_hosts)}
    there = {number: place_of(hosts, str(number)) for number in range(PATIENT.num_hosts)}
    assert set(there.values()) == set(WORKERS)  # both are used
    thinking = next(number for number, name in there.items() if name == "environment-0")
    killed = psutil.Process(run.pid("environment-0"))
    left = killed.children(recursive=True)
    assert len(left) > 2
    stepping = asyncio.create_task(hosts.step(str(thinking), "sleep 5"))
    await asyncio.sleep(0.5)
    run.keeper.start()
    killed.kill()
    with pytest.raises(EnvironmentLost, match="its worker of environments was lost"):
        await stepping
    assert await hosts.reset(str(thinking), SCRIPT, thinking, states[thinking]) is None
    assert place_of(hosts, str(thinking)) == "environment-1"
    assert (await hosts.step(str(thinking), "sleep 5")).observation == f"{thinking}:2"
    others = [number for number in there if number != thinking]
    lost = [number for number in others if there[number] == "environment-0"]
    for number in lost:
        with pytest.raises(EnvironmentLost):
            await hosts.step(str(number), "last")
    await asyncio.to_thread(psutil.wait_procs, left, 60)
    assert not [process for process in left if process.is_running()]
    await until(lambda: hosts.workers["environment-0"].is_there, 120)
    for number in lost:
        assert await hosts.reset(str(number), SCRIPT, number, states[number]) is None
    for number in others:
        assert (await hosts.step(str(number), "last")).observation == f"{number}:2"
    for number in range(PATIENT.num_hosts):
        await hosts.end(str(number))
    await hosts.reset("again", SCRIPT, 9)
    assert place_of(hosts, "again") == "environment-0"  # it answers sooner
    await hosts._leave_workers()


async def test_what_an_engine_left_is_ended_when_it_leaves(run: Run) -> None:
    hosts = run.hosts("engine-1")
    for number in range(8):  # all the places there are
        await hosts.reset(str(number), SCRIPT, number)
    await hosts._leave_workers()
    other = run.hosts("engine-2")
    for number in range(8):
        assert await other.reset(str(number), SCRIPT, 3) == "3:0"
    waiting = asyncio.create_task(other.reset("late", SCRIPT, 3))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await other.end("late")
    await other.end("7")
    assert await other.reset("next", SCRIPT, 4) == "4:0"  # "late" holds no place
    await other._leave_workers()


async def fail_often(hosts: RemotePools, settings: Script) -> None:
    """Reset until one of the two pools has had enough."""
    for number in range(2 * PATIENT.max_restarts + 3):
        await failure(hosts.reset(str(number), settings, 1))


async def test_failures_and_errors_come_through(run: Run) -> None:
    hosts = run.hosts("engine-3")
    await hosts.reset("one", SCRIPT, 1)
    assert (await failure(hosts.step("one", "raise it")))[1].startswith("LookupError")
    assert (await failure(hosts.step("one", "")))[1] == "this pool knows no such episode"
    broken = Script(at_build="raise no game")
    with pytest.raises(ValueError, match="must answer at least once in 8 restarts"):
        await fail_often(hosts, broken)
    await hosts._leave_workers()


async def test_pools_tell_their_states(run: Run) -> None:
    hosts = run.hosts("engine-4")
    await hosts.reset("one", SCRIPT, 1)
    await until(
        lambda: any(pool.num_episodes for pool in reported_states(run.client, "run", WORKERS)), 60
    )
    pools = reported_states(run.client, "run", WORKERS)
    assert {pool.name for pool in pools} == set(WORKERS)
    (told,) = [host for pool in pools for host in pool.processes if host.episode]
    assert told.state == "thinking"
    assert told.kind == "scripted_environments.Script"
    await hosts._leave_workers()
