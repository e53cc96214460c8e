"""The fork server of the workers is killed, as often as one likes and whenever: another one is made
and the workers come. A worker that can never come is told at once, with how its process ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from threading import Thread

import pytest
from distributed import Client

from tasks.cluster.dask_cluster import ClusterTooSmall, open_cluster, worker_addresses
from tasks.cluster.devices import ClusterConfig, worker_specs
from tasks.cluster.nanny import NUM_STARTS
from tasks.cluster.ownership import renew_workers
from tasks.cluster.registry import ActorRegistry

WITHIN_S = 100.0
ROLES = "rollout: 0, learner: 0"
CONFIG = ClusterConfig(num_devices=1, cores_per_device=1, dashboard_port=0, roles=ROLES)
NEVER = r"the worker engine-0 is not started any more, .*engine-0\.log"
NAMES = {spec.name for spec in worker_specs(CONFIG)}


def server() -> int | None:
    pid: int | None = vars(forkserver._forkserver)["_forkserver_pid"]
    return pid


def until(is_true: Callable[[], object]) -> None:
    ends = time.monotonic() + WITHIN_S
    while not is_true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def kill_servers(times: int, killed: list[int]) -> None:
    """Kill one server after the other, each as soon as it is there."""
    while len(killed) < times:
        until(lambda: (pid := server()) is not None and pid not in killed)
        pid = server()
        assert pid is not None
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)


@contextmanager
def cluster(folder: Path) -> Iterator[Client]:
    """A new fork server, and workers of it."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # as multiprocessing's own tests do
    with open_cluster(CONFIG, folder / "scratch", folder / "log", imports=("wave",)) as client:
        yield client


def are_there(client: Client) -> bool:
    return worker_addresses(client).keys() == NAMES


@pytest.mark.parametrize("times", [1, 2, 5])
def test_servers_that_are_killed_while_workers_start_are_made_anew(
    times: int, tmp_path: Path
) -> None:
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    killed: list[int] = []
    killer = Thread(target=kill_servers, args=(times, killed))
    killer.start()
    with cluster(tmp_path) as client:
        assert are_there(client)
        killer.join()
        until(lambda: are_there(client))
    assert len(set(killed)) == times


@pytest.mark.parametrize("times", [1, 2, 5])
def test_servers_that_are_killed_under_workers_are_made_anew(times: int, tmp_path: Path) -> None:
    with cluster(tmp_path) as client:
        before = worker_addresses(client)
        kill_servers(times, [])
        until(lambda: are_there(client) and not before.items() & worker_addresses(client).items())


def test_a_cluster_whose_worker_cannot_start_says_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "log/engine-0.log").mkdir(parents=True)  # no file to write into
    with (
        pytest.raises(ClusterTooSmall, match=f"engine-0 ended {NUM_STARTS} times while it started"),
        cluster(tmp_path),
    ):
        raise AssertionError("no worker came")


def test_nobody_waits_for_a_worker_that_can_never_come(tmp_path: Path) -> None:
    with cluster(tmp_path) as client:
        log = tmp_path / "log/engine-0.log"
        log.rename(tmp_path / "before.log")
        log.mkdir()
        registry = ActorRegistry(client, "run")
        with pytest.raises(ClusterTooSmall, match=NEVER):
            renew_workers(client, ("engine-0",), WITHIN_S)
        with pytest.raises(ClusterTooSmall, match=NEVER):
            registry.create_all({"one": "engine-0"}, {"one": (dict, ())}, WITHIN_S)
