"""A queue of finished items with one reader on the event loop, who can wait for the first."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items in the order in which they arrived."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._arrived = asyncio.Event()
        self._num_drops = 0

    def put(self, item: T) -> None:
        """Add an item and end a wait of `take`."""
        self._items.append(item)
        self._arrived.set()

    def wake(self) -> None:
        """End a wait of `take` with the items that are there, maybe none."""
        self._arrived.set()

    def drop(self) -> None:
        """Discard all items and end a wait of `take`: later items are for later callers."""
        self._items = []
        self._num_drops += 1
        self._arrived.set()

    async def take(self, wait_s: float) -> list[T]:
        """Remove and return all items; waits up to wait_s for the first. Empty if none came."""
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
