"""A thread that owns an engine core, steps it while there is work, and runs calls between steps.

    call(fn) ──▶ commands ──▶ ┌ drain commands ─▶ step while busy ┐ ──▶ finished ──▶ collect()
                              └───────── sleep when idle ◀────────┘

Callers run on an event loop and are woken for finished responses and new tokens, never for a step.
When the core raises anything but a ValueError, or TransferLost for weights that did not come, the
thread ends: every pending and later call raises EngineLost with the cause, or
DeviceMemoryExhausted.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from artifacts.new_tokens import News
from tasks.cluster.cards import exhausted, is_out_of_memory
from tasks.engines.base import EngineLost, TransferLost

T = TypeVar("T")


class Core(Protocol):
    """An engine core as the thread drives it. All its methods are called in that thread only."""

    @property
    def busy(self) -> bool:
        """True if a step would do something."""

    def step(self) -> Sequence[News]:
        """Make one step of the batch; returns finished responses, and new tokens of others."""

    def close(self) -> None:
        """Free the device."""


C = TypeVar("C", bound=Core)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    run: Callable[[Any], Any]  # Any: the core in, the call's answer out
    answer: Future[Any]
    when_idle: bool = False  # whether the command waits until the core has nothing to do


class SteppingThread(Generic[C]):
    """Builds the core in a thread of its own and drives it there until `close` or a failure."""

    def __init__(self, name: str, build: Callable[[], C], memory_cure: str = "") -> None:
        """memory_cure: what to do where the GPU's memory is exhausted."""
        self._name = name
        self._build, self._memory_cure = build, memory_cure
        self._changed = threading.Condition()
        self._commands: deque[_Command] = deque()
        self._for_idle: deque[_Command] = deque()  # that wait until the core has nothing to do
        self._finished: deque[News] = deque()
        self._num_clearings = 0
        self._waiters: list[Future[None]] = []
        self._lost: str | None = None
        self._loss: type[RuntimeError] = EngineLost  # of this class is the error that tells it
        self._closing = False
        self._step_began_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"{name}-stepping", daemon=True)

    def start(self, deadline_s: float) -> None:
        """Build the core and wait until it is ready. Raises the build's ValueError as it is, and
        EngineLost for any other failure."""
        built: Future[None] = Future()
        with self._changed:
            self._commands.append(_Command(run=lambda core: None, answer=built))
        self._thread.start()
        try:
            built.result(timeout=deadline_s)
        except TimeoutError as error:
            raise self._give_up("start", deadline_s) from error

    async def call(
        self, what: str, run: Callable[[C], T], deadline_s: float, *, when_idle: bool = False
    ) -> T:
        """Run a function on the core between two steps and return its result. when_idle: wait until
        the core has nothing to do. `what` names the call in the error of a missed deadline."""
        answer: Future[T] = Future()
        with self._changed:
            self.check_alive()
            self._commands.append(_Command(run=run, answer=answer, when_idle=when_idle))
            self._changed.notify()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), deadline_s)
        except TimeoutError as error:
            raise self._give_up(what, deadline_s) from error

    async def collect(self, wait_s: float) -> list[News]:
        """Return the responses and new tokens since the last call; waits up to wait_s for the
        first. A `clear` in between ends the call with an empty list, so that a caller that has died
        takes no response from those after it."""
        with self._changed:
            began = self._num_clearings
            waiter: Future[None] | None = None if self._finished else Future()
            if waiter is not None:
                self.check_alive()
                self._waiters.append(waiter)
        if waiter is not None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(waiter), wait_s)
            except TimeoutError:
                with self._changed:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)
        with self._changed:
            if began != self._num_clearings:
                return []
            finished = list(self._finished)
            self._finished.clear()
        return finished

    def deliver(self, finished: Sequence[News]) -> None:
        """Hand responses to `collect` and end its waits."""
        if not finished:
            return
        with self._changed:
            self._finished.extend(finished)
        self.wake()

    def clear(self) -> None:
        """Drop everything that was not collected, and end the waits for responses and for an idle
        core: their callers are gone. Called in the thread."""
        overtaken = EngineLost(f"{self._name} has loaded other weights meanwhile")
        while self._for_idle:
            _fail(self._for_idle.popleft().answer, overtaken)
        with self._changed:
            self._finished.clear()
            self._num_clearings += 1
        self.wake()

    def wake(self) -> None:
        """End the waits of `collect` with the responses that are there, maybe none."""
        with self._changed:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(None)

    def close(self, deadline_s: float) -> None:
        """End the thread after its step and free the device; also twice, or on a dead thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(deadline_s)
        if self._thread.is_alive():
            raise EngineLost(f"{self._name} did not end within {deadline_s:g} s; {self._state()}")

    # --- inside the thread

    def _run(self) -> None:
        core: C | None = None
        try:
            core = self._build()
            while self._wait_for_work(core):
                self._carry_out_commands(core)
                if core.busy:
                    self._step_began_s = time.monotonic()
                    finished = core.step()
                    self._step_began_s = None
                    self.deliver(finished)
            self._die(EngineLost(f"{self._name} was closed"))
        except BaseException as error:
            user_error = core is None and isinstance(error, ValueError)
            self._die(self._dead_of(error), for_waiting=error if user_error else None)
        finally:
            if core is not None:
                core.close()

    def _wait_for_work(self, core: C) -> bool:
        """Wait for a command, a busy core or `close`; False when the thread shall end."""
        with self._changed:
            while not (self._commands or self._for_idle or self._closing or core.busy):
                self._changed.wait()
            return not self._closing

    def _carry_out_commands(self, core: C) -> None:
        """Run the commands. A ValueError belongs to the caller and leaves the core as it was; any
        other error leaves the core undefined and ends the thread."""
        while self._commands:
            command = self._commands.popleft()
            if command.when_idle:
                self._for_idle.append(command)
            else:
                self._carry_out(command, core)
        while self._for_idle and not core.busy:
            self._carry_out(self._for_idle.popleft(), core)

    def _carry_out(self, command: _Command, core: C) -> None:
        if not command.answer.set_running_or_notify_cancel():
            return
        try:
            command.answer.set_result(command.run(core))
        except (ValueError, TransferLost) as error:
            command.answer.set_exception(error)
        except BaseException as error:
            command.answer.set_exception(self._dead_of(error))
            raise

    def _dead_of(self, error: BaseException) -> RuntimeError:
        if is_out_of_memory(error):
            return exhausted(self._name, "its engine", error, {}, self._memory_cure)
        cause = "".join(traceback.format_exception(error))
        return EngineLost(
            f"{self._name}'s stepping thread died of {type(error).__name__}: {error}\n{cause}"
        )

    def _die(self, lost: RuntimeError, for_waiting: BaseException | None = None) -> None:
        """Refuse every later call, and fail the pending ones, with the user's error if any."""
        with self._changed:
            if self._lost is None:
                self._lost, self._loss = str(lost), type(lost)
            commands = (*self._commands, *self._for_idle)
            waiting = [command.answer for command in commands] + self._waiters
            self._commands.clear()
            self._for_idle.clear()
            self._waiters = []
        for future in waiting:
            _fail(future, for_waiting or self._loss(self._lost))

    # --- deadlines

    def check_alive(self) -> None:
        """Raise the loss when the thread has ended or missed a deadline. Does not wait."""
        if self._lost is not None:
            raise self._loss(self._lost)

    def _give_up(self, what: str, deadline_s: float) -> EngineLost:
        """Declare the replica lost because it missed a deadline. This is final: a late answer could
        bring back requests that were relaunched elsewhere."""
        with self._changed:
            self._lost = (
                self._lost
                or f"{self._name} did not answer {what} within {deadline_s:g} s; {self._state()}"
            )
            self._closing = True
            self._changed.notify()
        return EngineLost(self._lost)

    def _state(self) -> str:
        began_s = self._step_began_s
        if not self._thread.is_alive():
            return "its stepping thread is gone"
        if began_s is None:
            return "its stepping thread is between steps"
        return f"in one step for {time.monotonic() - began_s:.1f} s"


def _fail(answer: Future[Any], error: BaseException) -> None:  # Any: of any call
    """End a pending call with an error, unless its caller has given up."""
    if answer.set_running_or_notify_cancel():
        answer.set_exception(error)
