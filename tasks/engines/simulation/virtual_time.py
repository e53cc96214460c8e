"""An asyncio event loop on a virtual clock: when nothing can run, time jumps to the next timer.

Hours of simulated rollout take seconds, with the code that also runs on a real loop. Threads and
sockets do not work here: a wait that no timer can end raises RuntimeError at once, where a real
loop would hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class _Jump(selectors.SelectSelector):
    """A selector that advances a clock instead of waiting, and watches no file."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError(
                "on a virtual clock every wait must end by a timer, but all tasks wait and no timer"
                " is set"
            )
        self.now_s += timeout
        return []


class _Moment(float):
    """The time at which a timer ends; of equal times, the timer set first sorts first."""

    num_before: int  # timers that were set before it

    def __lt__(self, other: float) -> bool:
        if isinstance(other, _Moment) and self == other:
            return self.num_before < other.num_before
        return float(self) < float(other)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 s and passes only while every task waits. Timers of the
    same moment end in the order in which they were set, regardless of other timers."""

    def __init__(self) -> None:
        self._jump = _Jump()
        self._num_timers = 0
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        moment = _Moment(when)
        moment.num_before = self._num_timers
        self._num_timers += 1
        return super().call_at(moment, callback, *args, context=context)


def run_virtual(work: Coroutine[Any, Any, Result]) -> Result:  # Any: as in asyncio.run
    """Run a coroutine to completion on a new virtual clock and return its result."""
    found: list[Result] = []

    async def find() -> None:
        # not returned: a Runner writes out what its task returns, seconds long for a large result
        found.append(await work)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(find())
    return found[0]
