"""The sandbox's fork server: forks candidates, kills them at the host's request, reports their end.

    host == a byte, the candidate's descriptors with it ==> fork server --fork--> candidate
    host == pipes =============================================================> candidate

Runs inside the sandbox: standard library only. Trusted, executes no candidate's code. The modules
that programs import are imported here once, so that a program costs a fork and not an interpreter's
start. The fork server never sees a program nor a result, which pass through the host's pipes: no
candidate inherits memory in which another's text or results lie, not even freed memory.
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
    "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math",
    "numbers", "operator", "queue", "random",
    "re", "statistics", "string", "textwrap", "time", "types", "typing", "unicodedata",
)  # fmt: skip
FORK = b"F"  # the host's request for a candidate, with its four descriptors
END = b"E"  # the host's request to kill the running candidate
NUM_STREAMS = 4  # standard input, standard output, commands, replies


def serve(control: socket.socket, fork: Fork, run: Callable[[tuple[int, ...]], None]) -> None:
    """Fork a process that calls `run` at each request of the host, one at a time, until the host is
    gone."""
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
    """Await the exit code of a child, which is killed when the host asks for it or is gone."""
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
    """`fork_server SOCKET_FD MEMORY_BYTES TMP_BYTES [READABLE_PATH...]`: paths are given where
    there are no namespaces."""
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
