"""Workers of environments while rounds go on: one that is lost gets a new actor at once, so that
episodes wait for no recovery. They train nothing and hold nothing that a replay needs.

    look ─▶ lost? ─▶ new process and actor ─▶ warm ─▶ look, ...

A worker that is lost again and again is given up; the others go on with its episodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence

from tasks.cluster.actors import ActorLost

logger = logging.getLogger(__name__)

LOOK_S = 2.0


class HostKeeper:
    """Of a run's workers of environments. For the coroutines of one event loop."""

    def __init__(
        self,
        names: Sequence[str],
        lost: Callable[[Collection[str]], Awaitable[tuple[str, ...]]],
        make: Callable[[Sequence[str]], Awaitable[None]],
        max_remakes: int,
    ) -> None:
        """lost: which of these do not answer. make: their actors anew, in new processes where the
        old ones live. max_remakes: of each."""
        self._names = set(names)
        self._lost, self._make = lost, make
        self._max_remakes = max_remakes
        self._remakes = Counter[str]()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look after them from now on; harmless when it does already, or where there are none."""
        if self._names and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    def stop(self) -> None:
        """Make no more."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    async def _keep(self) -> None:
        while self._names:
            await asyncio.sleep(LOOK_S)
            try:
                lost = await self._lost(self._names)
            except (RuntimeError, OSError) as error:  # of the connection, not of a worker
                logger.warning("workers of environments not looked at: %s", error)
                continue
            for name in lost:
                await self._replace(name)

    async def _replace(self, name: str) -> None:
        self._remakes[name] += 1
        if self._remakes[name] > self._max_remakes:
            logger.warning("worker=%s of environments given up: lost too often", name)
            self._names.discard(name)
            return
        logger.warning("worker=%s of environments lost, made anew", name)
        try:
            await self._make((name,))
        # TimeoutError is an OSError; ValueError says that its fork server did not start
        except (ActorLost, RuntimeError, OSError, ValueError) as error:
            logger.warning("worker=%s of environments not made anew: %s", name, error)
