"""The processes that this one has started, directly or not, those among them that lost their
parent included: no run is ever looked for by name.

    adopt_orphans() ─▶ Popen ─▶ descendants(): all of it ─▶ its parent is killed ─▶ still all of it
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs

from tasks.environments.processes.walls import ENTRY

PR_SET_CHILD_SUBREAPER = 36
SHARED_MEMORY = "/dev/shm/"


def adopt_orphans() -> None:
    """From here on a process whose parent ends becomes a child of this one, not of the machine's
    first process. OSError where the kernel does not do that."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel gives this process no orphans")


def descendants(besides: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    """All that this process has started, without these and what they have started."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        if child not in besides:
            found.append(child)
            with suppress(psutil.Error):
                found += child.children(recursive=True)
    return found


def reap(processes: Collection[psutil.Process], attended: int) -> None:
    """Bury adopted processes that have ended, as the machine's first process would; not the one
    that somebody waits for."""
    for process in processes:
        if process.pid != attended and is_zombie(process):
            with suppress(ChildProcessError, psutil.Error):
                if process.ppid() == os.getpid():
                    os.waitpid(process.pid, os.WNOHANG)


def is_zombie(process: psutil.Process) -> bool:
    """Whether it has ended and its parent has not taken note."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs."""
    return bool(process.is_running()) and not is_zombie(process)


def worker_name(process: psutil.Process) -> str:
    """The worker that a process is, by the log that it writes into; `flow` of the flow and what it
    started for itself; empty where it has no log."""
    with suppress(OSError):
        output = Path(f"/proc/{process.pid}/fd/1").readlink()
        if output.suffix == ".log":
            return output.stem
    return ""


def origins(processes: Collection[psutil.Process]) -> dict[psutil.Process, list[psutil.Process]]:
    """Every fork server of environment hosts, with its hosts."""
    forked = {process for process in processes if _is_of_hosts(process)}
    found: dict[psutil.Process, list[psutil.Process]] = {}
    for process in forked:
        with suppress(psutil.Error):
            parent = process.parent()
            if parent not in forked:
                found.setdefault(process, [])
            else:
                found.setdefault(parent, []).append(process)
    return found


def owner(process: psutil.Process) -> str:
    """The worker among whose descendants a process is; empty without one."""
    with suppress(psutil.Error):
        return next(filter(None, map(worker_name, process.parents())), "")
    return ""


def shared_files(processes: Collection[psutil.Process]) -> Iterator[Path]:
    """Files in shared memory that these processes have mapped."""
    for process in processes:
        with suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                _, is_shared, name = line.partition(SHARED_MEMORY)
                if is_shared:
                    yield Path(f"{SHARED_MEMORY}{name.removesuffix(' (deleted)')}")


def _is_of_hosts(process: psutil.Process) -> bool:
    """Whether it runs the program of hosts, as a fork server or forked from one; the walls around
    it have the same words in their command line, and another name."""
    try:
        return process.name().startswith("python") and ENTRY in process.cmdline()
    except psutil.Error:
        return False
