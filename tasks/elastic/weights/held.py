"""A version that a server has, or is about to have: which shards are there, and who waits for them.

A receiver marks shards from its threads; the server's event loop waits. What is not yet verified is
never read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from artifacts.weight_shards import Manifest
from tasks.elastic.weights.fan_out import FanOut


class HeldVersion:
    """A manifest, the folder of its files, and the shards that are right there."""

    def __init__(self, manifest: Manifest, folder: Path, ready: Collection[int]) -> None:
        """ready: indices of shards."""
        self.manifest = manifest
        self.folder = folder
        self.fan_out = FanOut()
        self._ready = set(ready)
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def missing(self) -> list[int]:
        """The indices of the shards that are not there yet, in order."""
        return [index for index in range(len(self.manifest.shards)) if index not in self._ready]

    def mark(self, index: int) -> None:
        """The shard is there and right. From any thread."""
        self._ready.add(index)
        for loop, event in tuple(self._waiting):
            loop.call_soon_threadsafe(event.set)

    async def wait_for(self, file: str, start: int, end: int, wait_s: float) -> None:
        """Return when all shards of these bytes are there. Raises TimeoutError after wait_s."""
        needed = {
            index
            for index, shard in enumerate(self.manifest.shards)
            if shard.file == file and shard.offset < end and start < shard.end
        }
        waiting = asyncio.get_running_loop(), asyncio.Event()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(wait_s):
                while not needed <= self._ready:
                    waiting[1].clear()
                    if not needed <= self._ready:  # marked between the look and the clearing
                        await waiting[1].wait()
        finally:
            self._waiting.remove(waiting)
