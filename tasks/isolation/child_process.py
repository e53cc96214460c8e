"""Starts a process, behind walls if wanted, in a process group of its own and with a socket to its
parent; ends it together with all processes that it started.

Leaves out the messages between the two (`frames`), and the command line of the walls (`isolation`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tasks.isolation.frames import GRACE_S, receive_frame
from tasks.isolation.interrupt import Interrupt
from tasks.isolation.isolation import Isolation
from tasks.isolation.user_map import UserMap, is_needed

STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A running process and the parent's end of the socket."""

    popen: subprocess.Popen[bytes]
    stream: socket.socket

    def kill(self) -> None:
        """Kill the process, its group and all it started; close the socket and the pipe."""
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
        """True if a signal has stopped the process or one that it started."""
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                if process.status() in STOPPED:
                    return True
        return False

    def _tree(self) -> list[psutil.Process]:
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
    """Start `command(descriptor of the child's end)` with this environment only. Raises OSError if
    that fails.

    is_silent: standard output is dropped and standard error is a pipe; otherwise both are the
    parent's. inherits: descriptors that the child keeps besides its end of the socket. umask: -1 is
    the parent's.
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


OPEN_UMASK = 0o022  # what the set-up makes behind walls, as root perhaps, is for who runs there

Command = Callable[[int, UserMap | None], Sequence[str]]  # the child's end of the socket, its users


class NotStarted(Exception):
    """Raised if a process could not be started or was not ready in time; nothing is left of it."""


def start_walled(
    command: Command,
    isolation: Isolation,
    *,
    env: Mapping[str, str],
    limit_s: float,
    interrupt: Interrupt,
) -> ChildProcess:
    """Start a process behind walls and await its greeting, {"ready"} or {"unavailable": why}.
    Raises NotStarted with the reason, and Interrupted once `interrupt` is set. env: the whole
    environment of the process."""
    try:
        process = _spawn(command, isolation, env, limit_s, interrupt)
    except OSError as error:
        raise NotStarted(f"could not be started: {error}") from error
    try:
        interrupt.wait(process.stream.fileno(), limit_s)
        greeting = receive_frame(process.stream, time.monotonic() + GRACE_S)
        problem = str(greeting.get("unavailable", ""))
    except TimeoutError:
        problem = f"not ready after {limit_s:.0f} s"
    except OSError as error:
        problem = _last_words(process) or "it ended before it was ready"
        raise NotStarted(f"did not start: {problem}") from error
    except BaseException:
        process.kill()
        raise
    if problem:
        process.kill()
        raise NotStarted(f"did not start: {problem}")
    return process


def _spawn(
    command: Command,
    isolation: Isolation,
    env: Mapping[str, str],
    limit_s: float,
    interrupt: Interrupt,
) -> ChildProcess:
    is_root = is_needed(os.geteuid(), Path("/proc/self/uid_map").read_text())
    is_mapped = is_root and isolation is Isolation.NAMESPACES
    with UserMap() if is_mapped else contextlib.nullcontext() as users:
        process = start_child(
            lambda socket_fd: command(socket_fd, users),
            env=env,
            cwd="/",
            is_silent=True,
            inherits=users.descriptors if users else (),
            umask=OPEN_UMASK,
        )
        if users:
            try:
                users.grant(process.stream.fileno(), limit_s, interrupt)
            except BaseException:
                process.kill()
                raise
    return process


def _last_words(process: ChildProcess) -> str:
    """End the process and its group; returns the last line of its standard error.

    A half-built child of a dead bubblewrap waits forever, and holds our pipe open.
    """
    assert process.popen.stderr is not None
    with os.fdopen(os.dup(process.popen.stderr.fileno()), errors="replace") as written:
        process.kill()
        return written.read().strip().rpartition("\n")[2]
