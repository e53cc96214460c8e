"""What lies ready to be collected, and whoever waits for it: one reader, on the event loop."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items in the order in which they were put in."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._arrived = asyncio.Event()
        self._num_drops = 0

    def put(self, item: T) -> None:
        """Lay it ready; a wait for items ends."""
        self._items.append(item)
        self._arrived.set()

    def wake(self) -> None:
        """End a wait with what there is."""
        self._arrived.set()

    def drop(self) -> None:
        """Forget what lies ready, and end a wait with nothing: what comes later is for whoever asks
        later."""
        self._items = []
        self._num_drops += 1
        self._arrived.set()

    async def take(self, wait_s: float) -> list[T]:
        """What lies ready; waits up to wait_s for the first item. Empty after wait_s."""
        began = self._num_drops
        if not self._items:
            self._arrived.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        if began != self._num_drops:
            return []
        items, self._items = self._items, []
        return items
