"""Stops a run on Ctrl-C, SIGTERM or a closed terminal. The signal is acknowledged at once, and the
flow is cancelled when it next awaits something.

    signal ─▶ a thread: a line on the terminal ─▶ the flow's task is cancelled ─▶ interrupted
                └─ Ctrl-C again: this process ends, with all processes that it started

An exception that a signal handler raises at an arbitrary place may be taken for a failure of the
code there, so that Prefect's own handler is replaced here. A flow that does not reach an await
within a second is cancelled where it is, and any failure that follows counts as the stop.

Two properties of Prefect 3.7, which `tests/unit/test_stopping.py` checks: every flow run looks up
`_prefect_sigterm_handler` in `prefect.utilities.engine` whenever it installs or compares the
handler; and a cancelled flow ends in the state Crashed, or Cancelled if Prefect's worker asked."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from artifacts.layout import STEPS
from tasks.cluster.parent import end_process

if TYPE_CHECKING:  # a command that only prints the message needs no store
    from artifacts.store import Store

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NUDGE = signal.SIGUSR1  # sent to the main thread, to interrupt the code that it executes
AWAITS_WITHIN_S = 1.0  # a flow that does not await within this time is interrupted
STATUS = 128  # a process that a signal ended has this exit status plus the signal's number
Handler = Callable[[int, FrameType | None], None]


def stop_message(num_steps: int) -> str:
    """Return the line that acknowledges a stop, for a run with num_steps committed steps."""
    committed = f"step {num_steps} is" if num_steps else "no step is"
    return f"stopping, {committed} committed; Ctrl-C again ends at once"


class Stop:
    """Receives the stop of one run. Create it in the flow's own asyncio task."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.number: signal.Signals | None = None  # that stopped the run
        self._report = report
        self._committed: Callable[[], int] = lambda: 0
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._is_taken_up = False  # by the flow, or the flow is over
        self._nudging = threading.Lock()

    @contextmanager
    def watched(self, store: Store) -> Iterator[None]:
        """Count this store's steps in the stop message, and apply `failures_as_stop`."""
        self._committed = lambda: len(store.list(STEPS))
        with self.failures_as_stop():
            yield

    @contextmanager
    def failures_as_stop(self) -> Iterator[None]:
        """Turn any failure of the block after a stop into CancelledError."""
        try:
            yield
        except BaseException as error:
            if self.number is None:
                raise
            raise asyncio.CancelledError(f"stopped by {self.number.name}") from error

    def receive(self, number: int) -> None:
        """Act on a signal, in the watching thread. The first signal stops the run. A later Ctrl-C
        ends the process; a later SIGTERM is ignored, since process groups often get it twice."""
        if self.number is not None:
            if number == signal.SIGINT:
                end_process(STATUS + number)
            return
        self.number = signal.Signals(number)
        self._loop.call_soon_threadsafe(self._cancel)
        nudging = threading.Timer(AWAITS_WITHIN_S, self._nudge)
        nudging.daemon = True
        nudging.start()
        with suppress(Exception):  # the store may not answer; the run is stopped all the same
            self._report(stop_message(self._committed()))

    def _cancel(self) -> None:
        if not self._is_taken_up and self._task is not None:
            self._is_taken_up = True
            self._task.cancel()

    def _nudge(self) -> None:
        with self._nudging:
            if not self._is_taken_up:
                signal.pthread_kill(threading.main_thread().ident or 0, NUDGE)

    def in_main_thread(self, number: int, _: FrameType | None) -> None:
        """Handle a signal in the main thread: raise CancelledError for NUDGE, else do nothing."""
        if number == NUDGE and not self._is_taken_up:
            self._is_taken_up = asyncio.current_task(self._loop) is self._task
            raise asyncio.CancelledError

    def end(self) -> None:
        """Mark the flow as over, so that no signal cancels anything any more."""
        with self._nudging:
            self._is_taken_up = True


@contextmanager
def stoppable(report: Callable[[str], None]) -> Iterator[Stop]:
    """Let signals stop the flow whose body is the block; `report` shows a line to the user. Does
    nothing outside the main thread, nor for signals that the process ignores (nohup)."""
    stop = Stop(report)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watching = threading.Thread(target=_watch, args=(reader, stop), name="signals", daemon=True)
    watching.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with _handled(stop), stop.failures_as_stop():
            yield stop
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        watching.join()


def _watch(reader: int, stop: Stop) -> None:
    """Read signal numbers, which the interpreter's C handler writes at once, until it is closed."""
    with os.fdopen(reader, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] in STOPS:
                stop.receive(number[0])


@contextmanager
def _handled(stop: Stop) -> Iterator[None]:
    """Install the stop's signal handler during the block, also in place of Prefect's."""
    from prefect.utilities import engine

    handler: Handler = stop.in_main_thread  # one object: Prefect asks whether it is the same
    prefects = engine._prefect_sigterm_handler
    taken = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in (*taken, NUDGE)}
    setattr(engine, prefects.__name__, handler)
    try:
        yield
    finally:
        stop.end()
        setattr(engine, prefects.__name__, prefects)
        for number, earlier in before.items():
            signal.signal(number, earlier)
