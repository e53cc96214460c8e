"""Which workers are forked from one process, and with which environment that process begins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver

import dask
import psutil
import pytest

from tasks.cluster.devices import ClusterConfig, worker_specs
from tasks.cluster.fork_server import METHOD, start_fork_server, start_method
from tasks.cluster.process_environment import first_environment

ROLES = "rollout: 0-1, learner: 0-1"


def test_workers_of_a_core_each_are_forked() -> None:
    specs = worker_specs(ClusterConfig(num_devices=2, roles=ROLES, cores_per_device=1))
    assert start_method(specs) == "forkserver"


@pytest.mark.parametrize(
    "config",
    [
        ClusterConfig(num_devices=2, roles=ROLES, cores_per_device=2),
        ClusterConfig(num_devices=2, roles=ROLES, device_kind="cuda"),
    ],
    ids=["threads", "GPUs"],
)
def test_workers_whose_imports_read_other_numbers_are_started_from_nothing(
    config: ClusterConfig,
) -> None:
    assert start_method(worker_specs(config)) == "spawn"


def test_the_server_begins_with_the_workers_environment_and_the_caller_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    wanted = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "6640"}
    begun: list[dict[str, str]] = []
    monkeypatch.setattr(forkserver, "ensure_running", lambda: begun.append(dict(os.environ)))
    before = dict(os.environ)
    with dask.config.set({METHOD: "forkserver"}):
        start_fork_server(("wave",), wanted)
    assert [wanted.items() <= environment.items() for environment in begun] == [True]
    assert dict(os.environ) == before


FLOW = """
import colorsys, os, sys, threading, time
import dask
from huggingface_hub import constants
from tasks.cluster.fork_server import METHOD, fork_fork_server
from distributed.utils import get_mp_context
from tests.unit.forked_worker import tell

wanted = {environment!r} | {{"TOLD": "by the flow"}}
if {threads}:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
with dask.config.set({{METHOD: "forkserver"}}):
    fork_fork_server(("wave",), wanted)
    worker = get_mp_context().Process(target=tell)
    worker.start()
    worker.join()
time.sleep(600)
"""


@contextmanager
def flow(environment: dict[str, str], threads: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process that begins in this environment and has a worker forked."""
    program = FLOW.format(environment=first_environment(), threads=threads)
    # no other variable that its libraries read
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=kept | environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> list[str]:
    """What the worker says of itself: has it the flow's imports and those asked for, the flow's
    environment, is it offline, can it start a process from nothing, who is its server."""
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_a_flow_that_began_like_its_workers_forks_their_server_from_itself() -> None:
    with flow(first_environment()) as process:
        *found, server = told(process)
        assert found == ["flow:True", "asked:True", "told:True", "offline:True", "spawns:True"]
        assert psutil.Process(int(server)).ppid() == process.pid
        assert psutil.Process(int(server)).name() == "fork-server"


@pytest.mark.parametrize(
    ("environment", "threads"),
    [({}, False), (first_environment(2), False), (first_environment(), True)],
    ids=["no environment", "more threads", "a thread beside"],
)
def test_any_other_flow_has_it_started_from_nothing(
    environment: dict[str, str], threads: bool
) -> None:
    with flow(environment, threads) as process:
        assert told(process)[:3] == ["flow:False", "asked:True", "told:True"]


def test_a_forked_server_ends_with_its_flow() -> None:
    with flow(first_environment()) as process:
        server = psutil.Process(int(told(process)[-1]))
        process.kill()
        server.wait(timeout=30)
