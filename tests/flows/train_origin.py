"""`rollflow train` in processes forked from one that has imported what a run needs, because these
imports take longer than a small run.

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
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tasks.cluster.process_environment import first_environment

ROOT = Path(__file__).parents[2]
PIPE_BYTES = 1 << 20  # a run that goes on after kills has much to say
ORDER_BYTES = 1 << 16
IMPORTS = (
    "flows.train",
    "tasks.worker_imports",
    "tasks.engines.vllm.imports",
    "mlflow.store.tracking.sqlalchemy_store",
)
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR"}  # as a fork server imports it


class Train:
    """A run that has been started, used as a `subprocess.Popen` is."""

    def __init__(self, origin: socket.socket, words: Sequence[str], root: Path) -> None:
        ends = [os.pipe() for _ in range(3)]
        out, err, state = (os.fdopen(reader) for reader, _ in ends)
        self.stdout, self.stderr, self._state = out, err, state
        for pipe in (out, err):  # nobody reads them while the run goes on
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        writers = [writer for _, writer in ends]
        order = {"words": words, "root": str(root)}
        socket.send_fds(origin, [json.dumps(order).encode()], writers)
        for writer in writers:
            os.close(writer)
        self.pid = int(state.readline())
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

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote, when it has ended. Raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()

    def send_signal(self, number: int) -> None:
        """To the run, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


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

    def start(self, words: Sequence[str], root: Path) -> Train:
        """A run in the background, its artifacts under root."""
        return Train(self._orders, words, root)

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


def serve(orders: socket.socket, tables: Path) -> None:
    """Fork a run for every order, until nobody can give one any more. tables: where to make an
    empty database of MLflow's."""
    for name in IMPORTS:
        import_module(name)
    import_module("artifacts.reports.mlflow_client").open_client(f"sqlite:///{tables}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        order, ends, *_ = socket.recv_fds(orders, ORDER_BYTES, 3)
        if not order:
            return
        if os.fork() == 0:
            given = json.loads(order)
            keep(partial(play, given["words"], Path(given["root"]), tables), *ends)
        for end in ends:
            os.close(end)


def keep(play_with: Callable[[int, int], NoReturn], out: int, err: int, state: int) -> NoReturn:
    """Start a run, and say which process it is and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (run := os.fork()) == 0:
        os.close(state)
        play_with(out, err)
    for end in (out, err):
        os.close(end)
    os.write(state, f"{run}\n".encode())
    _, ended = os.waitpid(run, 0)
    os.write(state, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def play(words: Sequence[str], root: Path, tables: Path, out: int, err: int) -> NoReturn:
    """The command, from its first line to the end of the process."""
    code = 1
    try:
        for stream, end in ((1, out), (2, err)):
            os.dup2(end, stream)
            os.close(end)
        give_tables(tables, root)
        code = import_module("flows.commands.train").main(words)
        atexit._run_exitfuncs()
        for screen in (sys.stdout, sys.stderr):
            screen.flush()
    finally:
        os._exit(code)


def give_tables(tables: Path, root: Path) -> None:
    """A folder without a database of MLflow's gets one in which its tables are made."""
    database = root / "mlflow.db"
    if root.is_dir() and not database.exists():
        shutil.copy(tables, database)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), tables=Path(sys.argv[2]))
