"""A process that ends with the one that started it, also where that is killed without a word.

    python -m tasks.cluster.parent PID MODULE WORDS...    python -m MODULE WORDS..., while PID lives

The kernel's signal for this (PR_SET_PDEATHSIG) comes when a thread of the parent ends, and reaches
no grandchildren. So the process looks for its parent by itself, and takes along all that it
started.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from runpy import run_module
from typing import NoReturn

import psutil  # type: ignore[import-untyped]  # it has no stubs

LOOK_S = 0.5
ORPHANED = 1  # exit status, which nobody reads
TRACKER = "multiprocessing.resource_tracker"  # module of Python's that each runs
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")  # audit events of Python
WATCH = "parent"  # name of the thread


def bound_command(module: str, *words: str) -> list[str]:
    """The command line of a module that ends with this process."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module, *words]


def end_with(parent: int) -> None:
    """From now on, end this process when `parent`, which started it, is gone."""
    threading.Thread(target=_watch, args=(parent,), name=WATCH, daemon=True).start()


def is_bound() -> bool:
    """Whether this process ends with its parent, which is to say then what both do."""
    return any(thread.name == WATCH for thread in threading.enumerate())


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    end_process(ORPHANED)


def end_process(code: int) -> NoReturn:
    """End this process and those that it started, now: threads of an engine may run on for ever,
    and start no more processes meanwhile."""
    sys.addaudithook(_refuse_starts)
    kill_descendants(os.getpid())
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _refuse_starts(event: str, _: tuple[object, ...]) -> None:
    if event in STARTS:
        raise RuntimeError("this process is ending, and starts no other")


def kill_descendants(pid: int) -> None:
    """Kill all that a process has started, in sessions of their own, too; nothing if it is gone.

    Each is stopped when it is seen, and then looked for what it had started by then: a stopped
    process starts nothing, so none is missed that began meanwhile.
    """
    found: set[psutil.Process] = set()
    with suppress(psutil.NoSuchProcess):
        while new := set(psutil.Process(pid).children(recursive=True)) - found:
            _each(new, psutil.Process.suspend)
            found |= new
    _each(found, psutil.Process.kill)


def kill_group(pid: int) -> None:
    """Kill what is left of the process group that this process led."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == pid:
                members.append(process)
    _each(members, psutil.Process.kill)


def _each(processes: Iterable[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    """Do this to processes, but for trackers of shared memory: each ends by itself after all that
    used the memory, and removes what those have left there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has just ended by itself
            if TRACKER not in " ".join(process.cmdline()):
                do(process)


def main() -> None:
    """Run the module that the command line names, as the main one."""
    _, parent, module, *words = sys.argv
    end_with(int(parent))
    sys.argv = [module, *words]  # the first is replaced by the module's file
    run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
