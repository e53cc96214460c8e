"""Whether a run goes on: a small file in its folder that its process renews, and that says at last
how it ended.

    with pulse(store): ...     running, running, ... -> finished | failed: why | interrupted: why
    read_status(store)         the same, but interrupted where the process is gone without a word
    await_end(store, say)      nobody goes on with it: a resume may begin

A killed process writes nothing. On the machine that it ran on its absence shows at once; elsewhere
the file's age tells, after STALE_S. Leaves out how far the run has come (`reports.figures`).
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

BEAT_S = 20.0  # between two signs of life
STALE_S = 120.0  # without one for so long, a run on another machine counts as interrupted
LOOK_S = 1.0  # between two looks at a run that may go on elsewhere
CLOCK_STEP_S = 5.0  # how far a beginning may be told apart; a clock that is set moves them all
MAX_WHY_CHARS = 400

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """What the run's process last said of itself."""

    state: State  # running until it says otherwise
    why: str  # reason of the end in one line; empty while it runs and when it finished
    host: str  # name of the machine, for people
    machine: str  # names boot and process namespace: pids compare only where it is the same
    pid: int  # process of the flow
    process_started_s: float  # when that process began, which tells it from a later one of its pid
    beat_s: float  # last sign of life, Unix seconds


STATUS_OF = TypeAdapter(RunStatus)


@contextmanager
def pulse(store: Store) -> Iterator[None]:
    """Say that the run goes on as long as the block lasts, and then how it ended.

    An Exception is a failure; whatever else ends the block (Ctrl-C, a cancelled flow) interrupts
    the run. A store that cannot take the file costs a line in the log, never the run.
    """
    own = _own_status()
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


def read_status(store: Store) -> RunStatus | None:
    """How the run is, or None where no process ever said so. ValueError where the file is damaged
    or of another version."""
    try:
        told = store.parsed(layout.STATUS, STATUS_OF.validate_json, "delete it")
    except FileNotFoundError:
        return None
    alive = is_alive(told.pid, told.process_started_s) if _is_here(told) else None
    return judged(told, alive, time.time())


def await_end(
    store: Store, tell: Callable[[str], object], sleep: Callable[[float], object] = time.sleep
) -> None:
    """Return when no process goes on with the run. ValueError where one does: two would write over
    each other's records.

    One whose process cannot be seen from here is watched: until it shows a sign of life, or has
    shown none for STALE_S. `tell` hears of a wait.
    """
    first = told = _read_or_none(store)
    ends = time.monotonic() + STALE_S
    while told is not None and first is not None and told.state == "running":
        if told.beat_s != first.beat_s or _is_seen(told):
            raise ValueError(
                f"a run must go on in one process at a time, {store.url} goes on in process"
                f" {told.pid} on {told.host}; end it, or wait for its end"
            )
        if time.monotonic() > ends:
            return
        if told is first:
            tell(f"waiting for up to {STALE_S:.0f} s: the run may go on on {told.host}")
        sleep(LOOK_S)
        told = _read_or_none(store)


def _read_or_none(store: Store) -> RunStatus | None:
    """None also for one that is damaged, or of another version."""
    try:
        return read_status(store)
    except ValueError:
        return None


def _is_seen(told: RunStatus) -> bool:
    return _is_here(told) and bool(is_alive(told.pid, told.process_started_s))


def _is_here(told: RunStatus) -> bool:
    return bool(told.machine) and told.machine == this_machine()


def judged(told: RunStatus, is_alive: bool | None, now_s: float) -> RunStatus:
    """What to believe of a status. `is_alive`: whether its process is there; None where that cannot
    be seen."""
    if told.state != "running":
        return told
    silent_s = now_s - told.beat_s
    if is_alive is False:
        return replace(told, state="interrupted", why=f"its process on {told.host} is gone")
    if is_alive is None and silent_s > STALE_S:
        why = f"no sign of life from {told.host} for {silent_s:.0f} s"
        return replace(told, state="interrupted", why=why)
    return told


def this_machine() -> str:
    """A name that two processes share exactly if they see the same pids; empty where that cannot be
    told."""
    boot = boot_id()
    try:
        return f"{boot} {os.readlink('/proc/self/ns/pid')}" if boot else ""
    except OSError:
        return ""


def boot_id() -> str:
    """The same for all processes of a machine until it is started anew, in containers, too; empty
    where that cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_alive(pid: int, started_s: float) -> bool | None:
    """Whether the process that began then is still there. None where one of its pid began at
    another time: it is another one, or the clock was set."""
    try:
        process = psutil.Process(pid)
        began_s = process.create_time()
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    if is_zombie:
        return False
    return True if abs(began_s - started_s) < CLOCK_STEP_S else None


def _own_status() -> RunStatus:
    return RunStatus(
        state="running",
        why="",
        host=socket.gethostname(),
        machine=this_machine(),
        pid=os.getpid(),
        process_started_s=psutil.Process().create_time(),
        beat_s=time.time(),
    )


def _write(store: Store, status: RunStatus) -> None:
    """The boundary where a store's failures stop: a sign of life is worth no run."""
    try:
        store.keep(layout.STATUS, json.dumps(asdict(status), indent=1).encode())
    except Exception as error:
        logger.warning("status=%s not written reason=%s", status.state, _one_line(error))


def _one_line(error: BaseException) -> str:
    words = without_secrets(" ".join(str(error).split()))
    return (words or type(error).__name__)[:MAX_WHY_CHARS]
