"""What a worker process writes: one log per worker, over all its restarts.

    worker's stdout, stderr ──▶ log/engine-0.log

It is the worker itself that writes there, so that the report of the signal that ends it is kept,
too. Leaves out how it died.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from distributed import Worker

NUM_KEPT = 40  # lines; a report of faulthandler with its stack is shorter
LINE_CHARACTERS = 300
TAIL_BYTES = 131_072  # such a report ends with a line that names every extension module


class WorkerOutput:
    """The log of one worker; its last lines are those of the process that runs now."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.log"
        self._begins = 0  # byte of the log at which the present process begins

    def open(self) -> None:
        """Make the log; before the worker starts."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self.forget()

    def last_lines(self) -> tuple[str, ...]:
        """What the process wrote last; nothing where its log is gone."""
        with suppress(OSError), self.path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._begins, end - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            return tuple(line[:LINE_CHARACTERS] for line in lines[-NUM_KEPT:])
        return ()

    def forget(self) -> None:
        """A new process begins: the lines of the one before are not its own."""
        with suppress(OSError):
            self._begins = self.path.stat().st_size


class LoggedWorker(Worker):  # type: ignore[misc]  # Dask is not typed
    """A worker that writes into its log; a signal that ends it leaves the stack of the thread it
    struck there."""

    def __init__(self, *args: Any, log: str, **options: Any) -> None:  # Any: Dask's options
        write_into(log)
        name_process(Path(log).stem)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the flow ends its workers
        faulthandler.enable(all_threads=False)
        super().__init__(*args, **options)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """None: nobody looks at a worker's own pages, and every user of the machine could."""


def name_process(name: str) -> None:
    """What `ps` and `top` call this process; its command line may be that of who forked it."""
    with suppress(OSError):  # a system without /proc
        Path("/proc/self/comm").write_text(name)


def write_into(log: str) -> None:
    """Send this process's streams to the end of a file, line by line."""
    number = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(number, stream)
    os.close(number)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
