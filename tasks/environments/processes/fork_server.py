"""The process from which environment processes are forked after it has made their slow imports.

    pool == a byte and a number, for a fork a stream with it ==> fork server --fork--> process
    pool == the stream ==============================================================> process
    pool <== number and exit code of each that ended === fork server

Runs behind the walls, maybe in another interpreter than the run's: standard library only. No
environment is built in it, and no order or answer of one passes through.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tasks.environments.processes.process_main import run_environment_process
from tasks.isolation.confinement import Fork, confine_fork_server
from tasks.isolation.frames import ENDED, send_frame
from tasks.isolation.seccomp import SystemCallFilter

FORK, KILL = b"F", b"K"  # fork a process for this stream; kill the process
ORDER = struct.Struct(">cI")  # one of these, and the process's number
NOT_FORKED = 71  # the exit code where the kernel gave no process: EX_OSERR
CLONE_VM = 0x100
MAX_ADDRESS_BITS = 47


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrders:
    """Arguments of a fork server, on its command line as JSON."""

    socket_fd: int
    search_path: Sequence[str]  # `sys.path`
    prefix: str  # `sys.prefix`
    imports: Sequence[str]  # modules that all processes share
    memory_bytes: int  # of a process, beyond what it shares
    tmp_bytes: int  # of a process's /tmp; 0 without namespaces
    readable: Sequence[str]  # paths for Landlock; none under namespaces
    has_network: bool
    start_s: int  # to be ready in


def main(text: str) -> None:
    """Serve a pool until the pool is gone. text: `ForkOrders` as JSON."""
    orders = ForkOrders(**json.loads(text))
    control = socket.socket(fileno=orders.socket_fd)
    signal.alarm(orders.start_s)  # an import that hangs outlives nobody
    try:
        _import(orders.imports)
        calls = SystemCallFilter(has_files=orders.tmp_bytes > 0, has_network=orders.has_network)
        fork = confine_fork_server(orders.readable, has_network=orders.has_network)
    except (OSError, ValueError, ImportError) as error:
        send_frame(control, {"unavailable": f"{type(error).__name__}: {error}"})
        return
    signal.alarm(0)
    gc.collect()
    gc.freeze()
    run = partial(
        run_environment_process,
        calls=calls,
        memory_bytes=_address_space() + orders.memory_bytes,
        tmp_bytes=orders.tmp_bytes,
        keeps_state=not orders.has_network,
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    send_frame(control, {"ready": True})
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())  # nobody reads the pipe from here on
    control.settimeout(None)
    EnvironmentForkServer(control, fork, run).serve()


class EnvironmentForkServer:
    """Forks environment processes, any number at a time, and reports their ends."""

    def __init__(self, control: socket.socket, fork: Fork, run: Callable[[int], None]) -> None:
        self._control = control
        self._fork = fork
        self._run = run
        self._processes: dict[int, tuple[int, int]] = {}  # number and pid by the watched descriptor
        self._ready = select.poll()
        self._ready.register(control.fileno(), select.POLLIN)

    def serve(self) -> None:
        """Serve orders until the pool is gone. All forked processes end with this one."""
        while True:
            for descriptor, _ in self._ready.poll():
                if descriptor != self._control.fileno():
                    self._bury(descriptor)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Execute one order; false if the pool is gone."""
        order, streams, _, _ = socket.recv_fds(self._control, ORDER.size, 1)
        if len(order) < ORDER.size:
            return False
        kind, number = ORDER.unpack(order)
        if kind == FORK:
            self._start(number, streams[0])
        else:
            for other, pid in self._processes.values():
                if other == number:
                    os.kill(pid, signal.SIGKILL)
        return True

    def _start(self, number: int, stream: int) -> None:
        try:
            pid = self._fork()
        except OSError:
            os.close(stream)
            self._report(number, NOT_FORKED)
            return
        if pid == 0:
            self._run(stream)
        os.close(stream)
        watched = os.pidfd_open(pid)
        self._processes[watched] = number, pid
        self._ready.register(watched, select.POLLIN)

    def _bury(self, watched: int) -> None:
        number, pid = self._processes.pop(watched)
        self._ready.unregister(watched)
        os.close(watched)
        self._report(number, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _report(self, number: int, code: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # noticed at the next order
            self._control.sendall(ENDED.pack(number, code))


def _import(modules: Sequence[str]) -> None:
    """Raises ImportError for a module that fails or starts threads: forking is unsafe then."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # a module may raise anything while it is imported
            raise ImportError(f"{name} raised {type(error).__name__}: {error}") from error
        if ctypes.CDLL(None).unshare(CLONE_VM):  # refused to a process of several threads
            raise ImportError(f"{name} starts threads")


def _address_space() -> int:
    """Returns this process's bytes, found by trying limits: there is no /proc here."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    low, high = 0, 1 << MAX_ADDRESS_BITS
    while high - low > mmap.PAGESIZE:
        middle = (low + high) // 2
        resource.setrlimit(resource.RLIMIT_AS, (middle, before[1]))
        try:
            mmap.mmap(-1, mmap.PAGESIZE).close()
            high = middle  # another page could be had
        except (OSError, MemoryError):
            low = middle
    resource.setrlimit(resource.RLIMIT_AS, before)
    return high
