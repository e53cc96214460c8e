"""The status of a run: a small file in its folder, which its process renews while the run goes on,
and in which it records how the run ended.

    with pulse(store): ...       running, running, ... -> finished | failed: why | interrupted: why
    read_status(store)           the written status, or interrupted if the process is gone
    await_end(store, report)     returns when no process goes on with the run: a resume may begin

A killed process writes no last status. On its own machine the missing process is noticed at once;
on other machines the status counts as interrupted when the file is older than STALE_S.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import psutil  # type: ignore[import-untyped]
from pydantic import TypeAdapter

from artifacts import layout
from artifacts.store import Store
from artifacts.urls import without_secrets

State = Literal["running", "interrupted", "finished", "failed"]

BEAT_S = 20.0  # between two writes of the file
STALE_S = 120.0  # without a write for so long, a run on another machine counts as interrupted
POLL_S = 1.0  # between two reads of the file of a run that may go on elsewhere
CLOCK_STEP_S = 5.0  # error of a process's start time; a clock that is set moves all of them
MAX_WHY_CHARS = 400

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The status of a run, as its process last wrote it."""

    state: State  # running until the process writes another
    why: str  # reason of the end in one line; empty while it runs and when it finished
    host: str  # name of the machine, for people
    machine: str  # names boot and process namespace: pids compare only where it is the same
    pid: int  # process of the flow
    process_started_s: float  # start of that process: a later one may have its pid
    beat_s: float  # last sign of life, Unix seconds


STATUS_OF = TypeAdapter(RunStatus)


@contextmanager
def pulse(store: Store) -> Iterator[None]:
    """Write the status `running` every BEAT_S seconds during the block, then how the run ended: an
    Exception as `failed`, any other BaseException (Ctrl-C, a cancelled flow) as `interrupted`. A
    failed write of the status is logged and never ends the run."""
    own = own_status()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            _write(store, replace(own, beat_s=time.time()))

    _write(store, own)
    beating = threading.Thread(target=beat, name="pulse", daemon=True)
    beating.start()
    state: State = "finished"
    why = ""
    try:
        yield
    except BaseException as error:
        state = "failed" if isinstance(error, Exception) else "interrupted"
        why = _one_line(error)
        raise
    finally:
        over.set()
        beating.join()
        _write(store, replace(own, state=state, why=why, beat_s=time.time()))


def own_status() -> RunStatus:
    """The status of a run that this process has just begun."""
    return RunStatus(
        state="running",
        why="",
        host=socket.gethostname(),
        machine=this_machine(),
        pid=os.getpid(),
        process_started_s=psutil.Process().create_time(),
        beat_s=time.time(),
    )


def read_status(store: Store) -> RunStatus | None:
    """Read the status of a run: `interrupted` if its process is gone, None if no process has
    written one. Raises ValueError for a file that is damaged or of another version."""
    try:
        written = store.parsed(layout.STATUS, STATUS_OF.validate_json, "delete it")
    except FileNotFoundError:
        return None
    return judged(written, _is_seen_alive(written), time.time())


def await_end(
    store: Store, report: Callable[[str], object], sleep: Callable[[float], object] = time.sleep
) -> None:
    """Wait until no process goes on with the run. Raises ValueError if one does. A process that
    cannot be seen from this machine counts as gone once the status file has not been rewritten for
    STALE_S. `report` is called with a sentence when a wait begins."""

    def read() -> RunStatus | None:
        try:
            return read_status(store)
        except ValueError:  # damaged, or of another version
            return None

    first = latest = read()
    ends = time.monotonic() + STALE_S
    while latest is not None and first is not None and latest.state == "running":
        if latest.beat_s != first.beat_s or _is_seen_alive(latest):
            raise ValueError(
                f"a run must go on in one process at a time, {store.url} goes on in process"
                f" {latest.pid} on {latest.host}; end it, or wait for its end"
            )
        if time.monotonic() > ends:
            return
        if latest is first:
            report(f"waiting for up to {STALE_S:.0f} s: the run may go on on {latest.host}")
        sleep(POLL_S)
        latest = read()


def _is_seen_alive(status: RunStatus) -> bool | None:
    """`is_alive` for the run's process; None if it cannot be seen from this machine."""
    if not status.machine or status.machine != this_machine():
        return None
    return is_alive(status.pid, status.process_started_s)


def judged(written: RunStatus, is_alive: bool | None, now_s: float) -> RunStatus:
    """The written status, or `interrupted` in place of `running` if the process is gone or silent
    for STALE_S. `is_alive`: None if the process cannot be seen."""
    if written.state != "running":
        return written
    silent_s = now_s - written.beat_s
    if is_alive is False:
        return replace(written, state="interrupted", why=f"its process on {written.host} is gone")
    if is_alive is None and silent_s > STALE_S:
        why = f"no sign of life from {written.host} for {silent_s:.0f} s"
        return replace(written, state="interrupted", why=why)
    return written


def this_machine() -> str:
    """A name that two processes share exactly if they see the same pids: boot id and pid namespace.
    Empty if the system has no such ids."""
    boot = boot_id()
    try:
        return f"{boot} {os.readlink('/proc/self/ns/pid')}" if boot else ""
    except OSError:
        return ""


def boot_id() -> str:
    """The machine's boot id: the same for all its processes, in containers too, until the machine
    reboots. Empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_alive(pid: int, started_s: float) -> bool | None:
    """True if the process with this pid and start time (Unix seconds) still runs. None if a process
    with this pid started at another time: it is another process, or the clock was changed."""
    try:
        process = psutil.Process(pid)
        began_s = process.create_time()
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    if is_zombie:
        return False
    return True if abs(began_s - started_s) < CLOCK_STEP_S else None


def _write(store: Store, status: RunStatus) -> None:
    try:
        store.keep(layout.STATUS, json.dumps(asdict(status), indent=1).encode())
    except Exception as error:
        logger.warning("status=%s not written reason=%s", status.state, _one_line(error))


def _one_line(error: BaseException) -> str:
    words = without_secrets(" ".join(str(error).split()))
    return (words or type(error).__name__)[:MAX_WHY_CHARS]
