"""A process in a group of its own that its parent talks to over a socket, and how all of it ends.

Leaves out what the two say to each other (`frames`), and what the process may do (`isolation`, and
its caller).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A running process and the parent's end of the socket."""

    popen: subprocess.Popen[bytes]
    stream: socket.socket

    def kill(self) -> None:
        """End it, whatever it started, stopped or not, and whatever is left in its group.

        Nothing that was open to it stays open here.
        """
        self.stream.close()
        started = self._tree()  # before its end makes orphans of them
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        for process in started:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.popen.wait()
        if self.popen.stderr is not None:
            self.popen.stderr.close()

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, or a process that it started: it answers nobody."""
        return any(_status(process) in STOPPED for process in self._tree())

    def _tree(self) -> list[psutil.Process]:
        """It and all that it started, nothing if it has ended."""
        try:
            first = psutil.Process(self.popen.pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []


def start_child(
    command: Callable[[int], Sequence[str]],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    is_silent: bool = False,
    inherits: Collection[int] = (),
    umask: int = -1,
) -> ChildProcess:
    """Start `command(descriptor of the child's end)` with this environment only. OSError if it
    cannot be started.

    `is_silent`: standard output is dropped and standard error is a pipe; otherwise both are the
    parent's. `inherits`: descriptors beside the child's end. `umask`: -1 is the parent's.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            popen = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if is_silent else None,
                stderr=subprocess.PIPE if is_silent else None,
                env=env,
                cwd=cwd,
                pass_fds=(theirs.fileno(), *inherits),
                start_new_session=True,
                umask=umask,
            )
        except OSError:
            ours.close()
            raise
    return ChildProcess(popen=popen, stream=ours)


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return ""
