"""The newest weights that a run has published, for elastic workers that follow at their own pace.
Belongs to one event loop.

    put ─▶ (rounds are told what must not be asked any more) ─▶ wake ─▶ newer_than: each elastic
    worker
"""

from __future__ import annotations

import asyncio

from artifacts.records import Running
from tasks.learner.stage_reports import PublishReport


class ElasticPublications:
    """Publications are numbered from 1 on: a version may be published again."""

    def __init__(self) -> None:
        self.number = 0  # of the newest
        self.dropping = 0  # of the last before whose load engines drop what they run
        self._newest: tuple[PublishReport, Running] | None = None
        self._changed = asyncio.Condition()

    def put(self, published: PublishReport, running: Running) -> None:
        """This is the newest."""
        self._newest = published, running
        self.number += 1
        if running is Running.DROP:
            self.dropping = self.number

    async def wake(self) -> None:
        """Whoever waits for a newer one may have it."""
        async with self._changed:
            self._changed.notify_all()

    async def newer_than(self, number: int) -> tuple[int, PublishReport, Running]:
        """The newest, once there is one after this. An elastic worker that missed one that drops
        what runs drops it now."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.number > number)
        assert self._newest is not None, "there is one"
        published, running = self._newest
        return self.number, published, Running.DROP if number < self.dropping else running
