"""Nannies of the workers that a run starts. A nanny starts its worker's process, records how that
ends, and starts another.

The worker itself writes its log, so that faulthandler's report of a fatal signal is kept, too.
Leaves out workers of a cluster that a run joins: those are started elsewhere.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from distributed import Client, Nanny, Status, Worker

from tasks.cluster.deaths import Death, account
from tasks.cluster.devices import WorkerSpec
from tasks.cluster.fork_server import keep_fork_server
from tasks.cluster.ports import LOOPBACK
from tasks.cluster.process_environment import name_process, python_path

NUM_KEPT = 40  # lines; a report of faulthandler with its stack is shorter
LINE_CHARACTERS = 300
TAIL_BYTES = 131_072  # such a report ends with a line that names every extension module


class WorkerOutput:
    """The log file of one worker, over all its processes."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.log"
        self._begins = 0  # byte of the log at which the present process's lines begin

    def open(self) -> None:
        """Create the log file; call it before the worker starts."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self.forget()

    def last_lines(self) -> tuple[str, ...]:
        """Last lines of the present process, at most NUM_KEPT; empty if the log is gone."""
        with suppress(OSError), self.path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._begins, end - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            return tuple(line[:LINE_CHARACTERS] for line in lines[-NUM_KEPT:])
        return ()

    def forget(self) -> None:
        """Leave out the present lines: `last_lines` returns those of the next process alone."""
        with suppress(OSError):
            self._begins = self.path.stat().st_size


class LoggedWorker(Worker):  # type: ignore[misc]  # Dask is not typed
    """A Dask worker that writes its output, and the stack at a fatal signal, to its log file."""

    def __init__(self, *args: Any, log: str, **options: Any) -> None:  # Any: Dask's options
        write_into(log)
        name_process(Path(log).stem)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the flow ends its workers
        faulthandler.enable(all_threads=False)
        super().__init__(*args, **options)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Start none: every user of the machine could read a worker's own pages."""


def write_into(log: str) -> None:
    """Redirect this process's stdout and stderr to the end of the file `log`, line by line."""
    number = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(number, stream)
    os.close(number)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


KILLED_WITHIN_S = 20.0  # a killed process is gone by then, however busy the machine
FORGOTTEN_AFTER_S = 0.2  # Dask polls every 0.05 s for the message that a process has started
NUM_STARTS = 3  # failed starts in a row, after which no further start is tried
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)  # sent by another process
BEGINNING = (Status.init, Status.starting)  # of a nanny, which has had no worker yet


class PatientNanny(Nanny):  # type: ignore[misc]  # Dask is not typed
    """A nanny that records how its processes ended. Dask's own waits only one second after a kill,
    which makes a finished run fail, and gives up silently if a process cannot be forked."""

    process: Any  # Any: Dask's record of the worker's process, None where there is none

    def __init__(
        self, *args: Any, output: WorkerOutput, **options: Any
    ) -> None:  # Any: Dask's options
        self.deaths: list[Death] = []
        self.given_up = ""  # why the nanny starts no more processes; empty while it does
        self._num_failed = 0  # starts in a row
        self._output = output
        super().__init__(*args, worker_class=LoggedWorker, log=str(output.path), **options)

    async def start_unsafe(self) -> Any:  # Any: the nanny itself
        self._output.open()
        return await super().start_unsafe()

    def _on_worker_exit_sync(self, exitcode: int) -> None:
        """Record the end of a process. Dask calls this before it starts another one."""
        self.deaths.append(
            Death(
                exit_code=exitcode,
                lines=self._output.last_lines(),
                log=str(self._output.path),
                at_s=time.time(),
            )
        )
        self._output.forget()
        super()._on_worker_exit_sync(exitcode)

    async def instantiate(self) -> Any:  # Any: Dask's status
        """Start a process. Tries again if the fork server is lost meanwhile, or if the nanny itself
        is still starting; later Dask does that.

        The pause before avoids a fault of Dask, which polls for the start message of a process that
        has died, takes that of the next one, and never learns that the worker has started.
        """
        while True:
            if self.deaths or self._num_failed:
                await asyncio.sleep(FORGOTTEN_AFTER_S)
            server, failure = keep_fork_server(), None
            try:
                status = await super().instantiate()
            except TimeoutError:  # Dask has closed this nanny
                self.given_up = f"it was not there within {self.death_timeout:.0f} s"
                raise
            except Exception as error:  # such as a broken pipe to the fork server
                status, failure, self.process = Status.failed, error, None
            if status == Status.running:
                self._num_failed = 0
                return status
            # a signal from another process is no fault of the start
            is_killed = bool(self.deaths) and self.deaths[-1].exit_code in FROM_OUTSIDE
            if keep_fork_server() == server and (failure or not is_killed):
                await self._count_failure(failure)
            is_ending = self.status not in (*BEGINNING, Status.running)
            if is_ending or (failure is None and self.status not in BEGINNING):
                return status

    async def _count_failure(self, failure: Exception | None) -> None:
        """Count a failed start; close this nanny and raise RuntimeError after NUM_STARTS."""
        self._num_failed += 1
        if self._num_failed < NUM_STARTS:
            return
        self.given_up = _end_of(self.deaths) or f"it could not be started: {failure!r}"
        if self.status not in BEGINNING:
            await self.close(reason="rollflow-gives-up")
        raise RuntimeError(
            f"the worker {self.name} ended {NUM_STARTS} times while it started, {self.given_up}"
        )

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """Ask the worker to end, kill it after 0.8 of the timeout, and wait until it is gone."""
        try:
            await super().kill(timeout=timeout, reason=reason)
        except TimeoutError:
            async with asyncio.timeout(KILLED_WITHIN_S):
                await self.process.stopped.wait()


def nanny_of(
    spec: WorkerSpec, scratch: Path, logs: Path, deadline_s: float
) -> dict[str, Any]:  # Any: Dask's worker specification
    """Dask's specification of a worker whose process must start within deadline_s."""
    options: dict[str, Any] = {
        "name": spec.name,
        "nthreads": spec.num_threads,
        "resources": dict(spec.resources),
        "env": spec.environment | python_path(),
        "host": LOOPBACK,  # workers on other machines talk to the scheduler alone
        "dashboard": False,
        "memory_limit": 0,
        "local_directory": str(scratch),
        "output": WorkerOutput(logs, spec.name),
        "death_timeout": deadline_s,
        "silence_logs": 40,
    }
    if spec.device is not None and spec.device.startswith("cuda:"):
        options["plugins"] = [_near_gpu(spec.environment["CUDA_VISIBLE_DEVICES"])]
    return {"cls": PatientNanny, "options": options}


def _near_gpu(gpu: str) -> Any:  # Any: dask_cuda carries no types
    """The one plugin of dask_cuda that is of use here: it binds a worker to the cores of its GPU's
    NUMA node.

    dask_cuda's worker_spec would make a CUDA context in this process, which keeps half a gigabyte
    of the first GPU as long as the run lasts. No RMM pool: vLLM and torch own the GPU's memory.
    """
    from dask_cuda.plugins import CPUAffinity
    from dask_cuda.utils import get_cpu_affinity

    return CPUAffinity(get_cpu_affinity(int(gpu) if gpu.isdigit() else gpu))


def given_up(client: Client, worker: str) -> str:
    """Why the worker will not come back; empty if it may, and for a joined cluster."""
    nanny = getattr(getattr(client, "cluster", None), "workers", {}).get(worker)
    if nanny is None or nanny.status not in (Status.closed, Status.failed):
        return ""
    why = nanny.given_up or _end_of(nanny.deaths) or "its nanny has ended"
    return f"the worker {worker} is not started any more, {why}; resume the run"


def _end_of(deaths: list[Death]) -> str:
    """Describe how the last of these processes ended; empty if there is none."""
    return account(deaths[-1].exit_code, deaths[-1].lines, deaths[-1].log) if deaths else ""


def death_of(client: Client, worker: str, since_s: float) -> Death | None:
    """The last end of the worker's process since this time (Unix seconds); None if there was none,
    and for a joined cluster, whose nannies run elsewhere."""
    nanny = getattr(client.cluster, "workers", {}).get(worker)
    deaths: list[Death] = nanny.deaths if nanny is not None else []
    return next((death for death in reversed(deaths) if death.at_s >= since_s), None)
