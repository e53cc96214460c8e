"""Devices that go over from generating to training in mid-round, each by itself: the round goes on
meanwhile.

    engines are empty ─▶ begin ─▶ they rest, the learners on their devices are told ─▶ freed

Leaves out which devices, and when (`tasks.scheduling.stream_training`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tasks.scheduling.stream_training import ScaleDown


class Freeing:
    """Those of one round."""

    def __init__(
        self, on_freed: Callable[[ScaleDown], Awaitable[None]], elapsed_s: Callable[[], float]
    ) -> None:
        """on_freed: has the engines of a decision rest; elapsed_s: seconds of the round."""
        self.learners: list[str] = []  # whose devices were freed, in this order
        self.freed_s: list[float] = []  # when each of these was, seconds of the round
        self._on_freed = on_freed
        self._elapsed_s = elapsed_s
        self._under_way: list[asyncio.Task[None]] = []

    def begin(self, decision: ScaleDown) -> None:
        """Its engines are empty."""
        self._under_way.append(asyncio.create_task(self.free(decision)))

    async def free(self, decision: ScaleDown) -> None:
        """Its engines are empty: the learners on their devices may begin."""
        await self._on_freed(decision)
        self.learners += decision.learners
        self.freed_s += [self._elapsed_s()] * len(decision.learners)

    def check(self) -> None:
        """Raise what a device could not be freed for, if there is such."""
        for freeing in self._under_way:
            if freeing.done():
                freeing.result()

    async def finish(self) -> None:
        """Wait until all are freed; raises what one could not be freed for."""
        await asyncio.gather(*self._under_way)

    async def stop(self, within_s: float) -> None:
        """After a failure: none is being freed any more, whatever comes of it."""
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=within_s)
            for freeing in late:
                freeing.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
