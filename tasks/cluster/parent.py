"""Runs a module in a process that ends when its parent ends, even if the parent is killed.

    python -m tasks.cluster.parent PID MODULE WORDS...    python -m MODULE WORDS..., while PID lives

The kernel's signal for this (PR_SET_PDEATHSIG) comes already when a thread of the parent ends, and
reaches no grandchildren. So the process polls for its parent by itself.
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
ORPHANED = 1  # exit status; the parent that could read it is gone
TRACKER = "multiprocessing.resource_tracker"  # module of Python's that each runs
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")  # audit events of Python
WATCH = "parent"  # name of the thread


def bound_command(module: str, *words: str) -> list[str]:
    """Command line that runs a module with these arguments until this process ends."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module, *words]


def end_with(parent: int) -> None:
    """Start to watch: end this process once the process `parent`, which started it, is gone."""
    threading.Thread(target=_watch, args=(parent,), name=WATCH, daemon=True).start()


def is_bound() -> bool:
    """True if this process ends with its parent. The parent then prints messages for both."""
    return any(thread.name == WATCH for thread in threading.enumerate())


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    end_process(ORPHANED)


def end_process(code: int) -> NoReturn:
    """End this process and all processes that it started, at once: an engine's threads could run on
    for ever. No thread can start another process meanwhile."""
    sys.addaudithook(_refuse_starts)
    kill_descendants(os.getpid())
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader of the stream is gone
            stream.flush()
    os._exit(code)


def _refuse_starts(event: str, _: tuple[object, ...]) -> None:
    if event in STARTS:
        raise RuntimeError("this process is ending, and starts no other")


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process, also those in sessions of their own."""
    # each is stopped before it is searched for children: it starts no more, so none is missed
    found: set[psutil.Process] = set()
    with suppress(psutil.NoSuchProcess):
        while new := set(psutil.Process(pid).children(recursive=True)) - found:
            _each(new, psutil.Process.suspend)
            found |= new
    _each(found, psutil.Process.kill)


def kill_group(pid: int) -> None:
    """Kill all processes of the process group that the process `pid` led."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == pid:
                members.append(process)
    _each(members, psutil.Process.kill)


def _each(processes: Iterable[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    """Call `do` for each process, except for Python's resource trackers: a tracker ends by itself
    after all users of its shared memory, and removes what they have left there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has just ended by itself
            if TRACKER not in " ".join(process.cmdline()):
                do(process)


def main() -> None:
    """Run the module of the command line as `__main__`, bound to the parent there."""
    _, parent, module, *words = sys.argv
    end_with(int(parent))
    sys.argv = [module, *words]  # the first is replaced by the module's file
    run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
