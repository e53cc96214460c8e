"""A process behind walls, from its command line to its word that it is ready."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tasks.isolation.child_process import ChildProcess, start_child
from tasks.isolation.frames import receive_frame
from tasks.isolation.interrupt import Interrupt
from tasks.isolation.isolation import Isolation
from tasks.isolation.user_map import UserMap, is_needed

OPEN_UMASK = 0o022  # what the set-up makes behind walls, as root perhaps, is for who runs there
GRACE_S = 5.0  # for the rest of a greeting that has begun

Command = Callable[[int, UserMap | None], Sequence[str]]  # the child's end of the socket, its users


class NotStarted(Exception):
    """It could not be started, or did not say in time that it is ready; nothing is left of it."""


def start_walled(
    command: Command,
    isolation: Isolation,
    *,
    env: Mapping[str, str],
    limit_s: float,
    interrupt: Interrupt,
) -> ChildProcess:
    """Start it with this environment and await its greeting, {"ready"} or {"unavailable": why}.

    NotStarted with the reason, Interrupted once that is set.
    """
    try:
        process = _spawn(command, isolation, env, limit_s, interrupt)
    except OSError as error:
        raise NotStarted(f"could not be started: {error}") from error
    if problem := _problem(process, limit_s, interrupt):
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


def _problem(process: ChildProcess, limit_s: float, interrupt: Interrupt) -> str:
    """Why it is not ready and was ended, an empty string when it is."""
    try:
        interrupt.wait(process.stream.fileno(), limit_s)
        greeting = receive_frame(process.stream, time.monotonic() + GRACE_S)
    except TimeoutError:
        problem = f"not ready after {limit_s:.0f} s"
    except OSError:
        return _last_words(process) or "it ended before it was ready"
    except BaseException:
        process.kill()
        raise
    else:
        problem = str(greeting.get("unavailable", ""))
    if problem:
        process.kill()
    return problem


def _last_words(process: ChildProcess) -> str:
    """End all of its group, and the last line of what it wrote.

    What bubblewrap leaves half built without itself waits forever, with our pipe in its hand.
    """
    assert process.popen.stderr is not None
    with os.fdopen(os.dup(process.popen.stderr.fileno()), errors="replace") as written:
        process.kill()
        return written.read().strip().rpartition("\n")[2]
