"""Splits the output of a process: Rollflow's own lines go to the terminal, all else to a log.

    Rollflow ── print_line() ──▶ terminal
    torch, vLLM, Prefect, Dask, Python's warnings ── streams 1 and 2 ──▶ a log
        a temporary file at first ──▶ runs/ID/log/flow.log once the run has a folder

Commands call `divert`. A flow in a Prefect worker does not, and writes everything to the streams
that Prefect gave it. Leaves out the output of Dask's workers (tasks.cluster.nanny)."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from artifacts.urls import without_secrets

STREAMS = (1, 2)
FLOW_LOG = "flow.log"


class Output:
    """The diverted output of this process: streams to the terminal, and the log file."""

    def __init__(self) -> None:
        self.screen = _duplicate(sys.stdout, 1)
        self._errors = _duplicate(sys.stderr, 2)
        number, name = tempfile.mkstemp(prefix="rollflow-", suffix=".log")
        self.log = Path(name)
        self._first = self.log.open("rb")
        self._is_kept = False
        _point(number)

    def keep_in(self, directory: Path) -> None:
        """Move the log to this directory, with everything written so far."""
        directory.mkdir(parents=True, exist_ok=True)
        _flush()
        before, self.log = self.log, directory / FLOW_LOG
        number = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._move()
        _point(number)
        before.unlink()
        self._is_kept = True

    def print_error(self, sentence: str) -> None:
        """Print an error without secrets on the terminal, and the path of the log if any."""
        print(f"error: {without_secrets(sentence)}", file=self._errors)
        _flush()
        if self._is_kept or self.log.stat().st_size:
            print(f"log: {self.log}", file=self._errors)

    def close(self) -> None:
        """Delete the log if it is empty, unless it was moved by `keep_in`."""
        _flush()
        if self._is_kept:
            self._move()
        elif not self.log.stat().st_size:
            self.log.unlink()

    def _move(self) -> None:
        """Append what processes that were forked earlier write to the first, temporary log."""
        with self.log.open("ab") as log:
            log.write(self._first.read())


_diverted: Output | None = None


def divert() -> Output:
    """Send this process's output to a log until it ends: libraries write at the very end, too."""
    global _diverted
    _diverted = Output()
    return _diverted


def keep_log_in(directory: Path) -> None:
    """Move the log to this directory; does nothing if the output was not diverted."""
    if _diverted is not None:
        _diverted.keep_in(directory)


def screen() -> TextIO:
    return sys.stdout if _diverted is None else _diverted.screen


def print_line(line: str) -> None:
    """Print one of Rollflow's own lines on the terminal."""
    with suppress(OSError):  # the terminal may be gone, and the run goes on
        print(line, file=screen(), flush=True)


def _duplicate(stream: TextIO, number: int) -> TextIO:
    return os.fdopen(os.dup(number), "w", buffering=1, encoding=stream.encoding, errors="replace")


def _point(number: int) -> None:
    _flush()
    for stream in STREAMS:
        os.dup2(number, stream)
    os.close(number)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk
            stream.flush()
