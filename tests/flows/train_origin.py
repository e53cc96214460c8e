"""`rollflow train` in processes forked from one that has imported what a run needs, because these
imports take longer than a small run; and `dask`, for clusters that a run joins.

    tests ──words, three ends──▶ origin ──fork──▶ keeper ──fork──▶ rollflow train
      ◀──────────────── its process, and how it ended ┘

Everything else is the command's own: it begins with the words, divides its output, forks its
workers. In a root that is there it finds MLflow's database with its tables, which MLflow takes
seconds to make. `Launcher.run_command` starts it as a user does.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import dask
import psutil
from dask.cli import run_cli

from tasks.cluster.fork_server import METHOD, fork_fork_server
from tasks.cluster.parent import kill_descendants
from tasks.cluster.process_environment import first_environment
from tests.flows.whereabouts import SIGNAL, read_whereabouts, tell_when_asked

ROOT = Path(__file__).parents[2]
PIPE_BYTES = 1 << 20  # a run that goes on after kills has much to say
ORDER_BYTES = 1 << 16
WORKER_IMPORTS = ("flows.worker_imports", "tasks.engines.vllm.imports")
IMPORTS = (
    "flows.train",
    *WORKER_IMPORTS,
    "mlflow.store.tracking.sqlalchemy_store",
    "distributed.dashboard.scheduler",  # which a scheduler imports when it starts
    "prefect.flow_engine",
)
Order = Mapping[str, Any]  # what a program is told. Any: JSON
Ends = tuple[int, int]  # descriptors that it writes its output and its errors to
STACK_CHARACTERS = 2_500  # of each process of a run that does not go on
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR"}  # as a fork server imports it


class Forked:
    """A program that has been started, used as a `subprocess.Popen` is."""

    def __init__(self, origin: socket.socket, program: str, order: Order, ends: Ends) -> None:
        """Both ends are the program's own from now on."""
        reader, writer = os.pipe()
        self._state = os.fdopen(reader)
        message = json.dumps({"program": program, "order": order}).encode()
        socket.send_fds(origin, [message], [*ends, writer])
        for end in (*ends, writer):
            os.close(end)
        self.pid = int(self._state.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select((self._state,), (), (), 0)[0]:
            self.returncode = int(self._state.readline())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same when it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not select.select((self._state,), (), (), timeout)[0]:
            raise subprocess.TimeoutExpired("rollflow train", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """To the run, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Train(Forked):
    """A run, with what it writes."""

    def __init__(
        self,
        origin: socket.socket,
        words: Sequence[str],
        root: Path,
        environment: Mapping[str, str],
    ) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        for pipe in (out, err):  # nobody reads them while the run goes on
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        order = {"words": words, "root": str(root), "environment": environment}
        super().__init__(origin, "train", order, (out_end, err_end))

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote, when it has ended. Fails with `stacks` if it does not in time."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run goes on after {timeout} s: {self.stacks()}") from None
        return self.stdout.read(), self.stderr.read()

    def stacks(self) -> str:
        """What a run that does not go on wrote, and where its processes are; ends it."""
        family = [psutil.Process(self.pid)]
        family += family[0].children(recursive=True)
        logs = {}
        for process in family:
            with suppress(OSError, psutil.Error):
                caught = re.search(
                    r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text()
                )
                if caught and int(caught[1], 16) >> (SIGNAL - 1) & 1:
                    logs[process.pid] = Path(os.readlink(f"/proc/{process.pid}/fd/2"))
                    process.send_signal(SIGNAL)
        time.sleep(1.0)
        self.kill()
        self.wait()
        said = [
            f"{log.stem} {process}: {read_whereabouts(log, process, STACK_CHARACTERS)}"
            for process, log in logs.items()
            if log.is_file()
        ]
        os.set_blocking(self.stderr.fileno(), False)  # a child may have it open, still
        with suppress(BlockingIOError):
            said.append(os.read(self.stderr.fileno(), PIPE_BYTES).decode(errors="replace"))
        return "\n".join(said)


class TrainOrigin:
    """The process that runs are forked from; it is not ready before the first one."""

    def __init__(self, environment: Mapping[str, str], scratch: Path) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = (str(theirs.fileno()), str(scratch / "mlflow.db"))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.flows.train_origin", *words],
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                env=os.environ | dict(environment) | first_environment() | QUIET,
            )
        self._runs: list[Train] = []

    def start(
        self, words: Sequence[str], root: Path, environment: Mapping[str, str] | None = None
    ) -> Train:
        """A run in the background, its artifacts under root. environment: beside the origin's."""
        self._runs.append(Train(self._orders, words, root, environment or {}))
        return self._runs[-1]

    def end_runs(self) -> None:
        """Kill the runs that go on: a failed test leaves them to those after it."""
        for run in self._runs:
            run.kill()
        self._runs.clear()

    def start_dask(
        self, words: Sequence[str], environment: Mapping[str, str], log: BinaryIO
    ) -> Forked:
        """`dask` with these words, its workers forked as those of a run are."""
        order = {"words": words, "environment": dict(environment)}
        return Forked(self._orders, "dask", order, (os.dup(log.fileno()), os.dup(log.fileno())))

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


def serve(orders: socket.socket, tables: Path) -> None:
    """Fork a run for every order, until nobody can give one any more; then none goes on. tables:
    where to make an empty database of MLflow's."""
    for name in IMPORTS:
        import_module(name)
    import_module("artifacts.reports.mlflow_client").open_client(f"sqlite:///{tables}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        message, ends, *_ = socket.recv_fds(orders, ORDER_BYTES, 3)
        if not message:
            kill_descendants(os.getpid())
            return
        if os.fork() == 0:
            keep(json.loads(message), tables, *ends)
        for end in ends:
            os.close(end)


def keep(message: Order, tables: Path, out: int, err: int, state: int) -> NoReturn:
    """Start a program, and say which process it is and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (program := os.fork()) == 0:
        os.close(state)
        play(message, tables, out, err)
    for end in (out, err):
        os.close(end)
    os.write(state, f"{program}\n".encode())
    _, ended = os.waitpid(program, 0)
    os.write(state, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def play(message: Order, tables: Path, out: int, err: int) -> NoReturn:
    """The program, from its first line to the end of the process."""
    code = 1
    try:
        for stream, end in ((1, out), (2, err)):
            os.dup2(end, stream)
            os.close(end)
        tell_when_asked()
        code = PROGRAMS[message["program"]](tables=tables, **message["order"])
        atexit._run_exitfuncs()
        for screen in (sys.stdout, sys.stderr):
            screen.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def train(words: Sequence[str], root: str, environment: Mapping[str, str], tables: Path) -> int:
    """`rollflow train`; returns the exit status."""
    os.environ.update(environment)
    give_tables(tables, Path(root))
    code: int = import_module("flows.commands.train").main(words)
    return code


def dask_command(words: Sequence[str], environment: Mapping[str, str], tables: Path) -> int:
    """`dask`; returns the exit status. It needs no tables."""
    os.environ.update(environment)
    dask.config.refresh()
    dask.config.set({METHOD: "forkserver"})
    if words[0] == "worker":
        fork_fork_server(WORKER_IMPORTS, first_environment())
    sys.argv = ["dask", *words]
    try:
        run_cli()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


PROGRAMS: dict[str, Callable[..., int]] = {"train": train, "dask": dask_command}


def give_tables(tables: Path, root: Path) -> None:
    """A folder without a database of MLflow's gets one in which its tables are made."""
    database = root / "mlflow.db"
    if root.is_dir() and not database.exists():
        shutil.copy(tables, database)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), tables=Path(sys.argv[2]))
