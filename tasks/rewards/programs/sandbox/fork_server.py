"""The sandbox's fork server: forks candidates' processes, kills them at the host's request, and
reports their end. The host is the process outside the sandbox.

    host == a byte, the candidate's descriptors with it ==> fork server --fork--> candidate
    host == pipes =============================================================> candidate

Runs inside the sandbox, with the standard library only, and executes no code of a candidate. The
modules that programs import are imported here once, so that a program costs a fork. Programs and
results never pass through it, so no candidate inherits memory, not even freed, of another one.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

from tasks.isolation.confinement import Fork, confine_fork_server
from tasks.isolation.frames import ENDED, send_frame
from tasks.isolation.seccomp import SystemCallFilter
from tasks.rewards.programs.sandbox.candidate import run_program

PRELOADED = (
    "abc", "array", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy",
    "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq",
    "io", "itertools", "json", "math", "numbers", "operator", "queue", "random", "re", "statistics",
    "string", "textwrap", "time", "types", "typing", "unicodedata",
)  # fmt: skip
FORK = b"F"  # the host's request for a candidate, with its four descriptors
END = b"E"  # the host's request to kill the running candidate
NUM_STREAMS = 4  # standard input, standard output, commands, replies


def serve(control: socket.socket, fork: Fork, run: Callable[[tuple[int, ...]], None]) -> None:
    """Fork a process that calls `run` for each request, one at a time, until the host is gone."""
    number = 0
    while True:
        order, streams, _, _ = socket.recv_fds(control, 1, NUM_STREAMS)
        if not order:
            return
        if order != FORK:  # a request to end a candidate that had ended
            continue
        number += 1
        pid = fork()
        if pid == 0:
            run(tuple(streams))
        for descriptor in streams:
            os.close(descriptor)
        control.sendall(ENDED.pack(number, _await_end(control, pid)))


def _await_end(control: socket.socket, pid: int) -> int:
    """The exit code of a child, which is killed if the host asks for that or is gone."""
    watched = os.pidfd_open(pid)
    ready = select.poll()
    ready.register(watched, select.POLLIN)
    ready.register(control.fileno(), select.POLLIN)
    if all(one == control.fileno() for one, _ in ready.poll()):
        control.recv(1)
        os.kill(pid, signal.SIGKILL)
    os.close(watched)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Run the fork server: `fork_server SOCKET_FD MEMORY_BYTES TMP_BYTES [READABLE_PATH...]`. Paths
    are given for the isolation without namespaces."""
    control = socket.socket(fileno=int(sys.argv[1]))
    memory_bytes, tmp_bytes, readable = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    for name in PRELOADED:
        importlib.import_module(name)
    try:
        calls = SystemCallFilter(has_files=tmp_bytes > 0)
        fork = confine_fork_server(readable)
    except (OSError, ValueError) as error:
        send_frame(control, {"unavailable": str(error)})
        return
    gc.collect()
    gc.freeze()
    send_frame(control, {"ready": True})
    serve(control, fork, lambda streams: run_program(memory_bytes, tmp_bytes, streams, calls))
