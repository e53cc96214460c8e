"""A process in a group of its own that its parent talks to over a socket, and how all of it ends.

Leaves out what the two say to each other (`frames`), and what the process may do (`verify_worker`, `sandbox.isolation`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A running process and the parent's end of the socket."""

    popen: subprocess.Popen[bytes]
    stream: socket.socket

    def kill(self) -> None:
        """End it and whatever is left in its group."""
        self.stream.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def hang_up(self) -> None:
        """End the conversation from another thread: both sides read its end. `kill` afterwards."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)


def start_child(
    command: Callable[[int], Sequence[str]], *, env: Mapping[str, str], cwd: str | None = None, is_silent: bool = False
) -> ChildProcess:
    """Start `command(descriptor of the child's end)` with this environment only. OSError if it cannot be started.

    `is_silent`: standard output is dropped and standard error is a pipe; otherwise both are the parent's.
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
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    return ChildProcess(popen=popen, stream=ours)
