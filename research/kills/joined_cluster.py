"""A Dask cluster that no run starts or ends, as docs/operations.md has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tasks.cluster.ports import LOOPBACK, free_port
from tasks.cluster.process_environment import python_path

ROOT = Path(__file__).parents[2]


class Process(Protocol):
    """A process of a cluster; `subprocess.Popen` is one."""

    pid: int

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Start = Callable[..., Process]  # ...: as subprocess.Popen takes them
DASK_SETTINGS = {
    "DASK_DISTRIBUTED__WORKER__DAEMON": "False",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null",
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class JoinedCluster:
    """A cluster, which is there until it is closed."""

    def __init__(
        self,
        environment: Mapping[str, str],
        scratch: Path,
        workers: Sequence[str],
        host: str = LOOPBACK,
        near: Start = subprocess.Popen,
        far: Mapping[str, Start] = MappingProxyType({}),
    ) -> None:
        """scratch: folder for what it writes. near: what starts its processes, but for those of
        its workers that are on other hosts."""
        scratch.mkdir(exist_ok=True)
        port = free_port()
        self.address = f"tcp://{host}:{port}"
        self._environment = os.environ | python_path() | DASK_SETTINGS | dict(environment)
        self._scratch = scratch
        self.scheduler = self._start(near, "scheduler", "--host", host, "--port", str(port))
        starts = {**dict.fromkeys(workers, near), **far}
        begun = (self._worker(start, name) for name, start in starts.items())
        self.processes = (self.scheduler, *begun)

    def _worker(self, start: Start, name: str) -> Process:
        role = name.partition("-")[0]
        threads, slots = ("6", "coordinator=4") if role == "control" else ("2", f"{role}=1")
        size = ("--nthreads", threads, "--resources", slots, "--nworkers", "1")
        place = ("--local-directory", str(self._scratch), "--memory-limit", "0")
        return self._start(start, "worker", self.address, "--name", name, *place, *size)

    def _start(self, start: Start, *words: str) -> Process:
        command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
        with (self._scratch / "dask.log").open("ab") as log:
            return start(command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)

    def close(self) -> None:
        """End it."""
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
