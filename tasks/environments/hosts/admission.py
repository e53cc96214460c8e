"""The places of a pool, given in the order in which they are asked for."""

from __future__ import annotations

import asyncio

from artifacts.episodes import Ending
from tasks.environments.base import EnvironmentFailed


class AdmissionSlots:
    """For the coroutines of one event loop."""

    def __init__(self, num_places: int, wait_s: float) -> None:
        """wait_s: for how long a place is waited for."""
        self.num_waiting = 0
        self._num_places = num_places
        self._wait_s = wait_s
        self._free = asyncio.Semaphore(num_places)

    async def take(self) -> None:
        """Wait for one. Raises EnvironmentFailed after the deadline."""
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise EnvironmentFailed(
                Ending.UNANSWERED,
                f"no process was free for it within {self._wait_s:g} s,"
                f" all {self._num_places} have episodes",
            ) from error
        finally:
            self.num_waiting -= 1

    def release(self) -> None:
        """One is free for the next in order."""
        self._free.release()
