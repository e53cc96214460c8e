"""An asyncio event loop on a virtual clock: when nothing can run, time jumps to the next timer.

Hours of simulated rollout take seconds, and the same code waits on it as on a real loop. No threads
and no sockets: a wait that no timer ends is reported at once, where a real loop would hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jump(selectors.SelectSelector):
    """A selector that advances a clock instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError(
                "on a virtual clock every wait must end by a timer, but all tasks wait and no timer"
                " is set"
            )
        self.now_s += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 s and passes only while everything waits."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s


def run_virtual(work: Coroutine[Any, Any, Result]) -> Result:  # Any: as in asyncio.run
    """Run to completion on a clock of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
