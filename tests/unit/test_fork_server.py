"""Which workers are forked from one process, and with which environment that process begins."""

from __future__ import annotations

import os
from multiprocessing import forkserver

import dask
import pytest

from tasks.cluster.devices import ClusterConfig, worker_specs
from tasks.cluster.fork_server import METHOD, start_fork_server, start_method

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
