"""An elastic worker as the round talks to it: nobody waits until it has been told something.

    submit, abort ─▶ told one after the other, by a task of its own ─┐
    collect ───────▶ the elastic worker's answer, or that it could not be told ◀┘

So an elastic worker that hangs holds up nobody but itself, and the news that it is gone is heard
all the same. Whatever an elastic worker fails with is its loss: the run goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from artifacts.new_tokens import News
from artifacts.records import Request
from tasks.engines.base import Engine, EngineLost, EngineStats

Errand = Callable[[], Awaitable[None]]
Answer = TypeVar("Answer")


class BufferedEngine:
    """One elastic worker. Belongs to one event loop; `close` ends its task."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine
        self._errands: asyncio.Queue[Errand] = asyncio.Queue()
        self._num_unsent = 0  # submissions that the elastic worker has not got
        self._failure = f"{self.name} is not waited for any more"
        self._telling = asyncio.create_task(self._tell())

    async def submit(self, requests: Sequence[Request]) -> None:
        """Have these queued, after what the elastic worker was told before."""
        self._num_unsent += 1
        self._errands.put_nowait(partial(self._submit, tuple(requests)))

    async def abort(self, response_ids: Sequence[str]) -> None:
        """Have these stopped, after what the elastic worker was told before."""
        self._errands.put_nowait(partial(self._engine.abort, response_ids))

    async def collect(self, wait_s: float) -> list[News]:
        """As the engine's. Raises EngineLost, also when the elastic worker could not be told
        something."""
        collecting = asyncio.ensure_future(self._answer(self._engine.collect(wait_s)))
        try:
            await asyncio.wait({collecting, self._telling}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                raise EngineLost(self._failure)
            return collecting.result()
        finally:
            collecting.cancel()

    async def stats(self) -> EngineStats:
        """As the engine's. Raises EngineLost."""
        return await self._answer(self._engine.stats())

    @property
    def has_all(self) -> bool:
        """Whether the elastic worker has got every request."""
        return self._num_unsent == 0

    def hurry(self, most_s: float) -> None:
        """The elastic worker has so long to hand back what it runs; then it counts as lost."""
        asyncio.get_running_loop().call_later(most_s, self.close)

    def close(self) -> None:
        """Tell the elastic worker nothing more."""
        self._telling.cancel()

    async def _submit(self, requests: Sequence[Request]) -> None:
        await self._engine.submit(requests)
        self._num_unsent -= 1

    async def _tell(self) -> None:
        """Run the errands; ends with the first that fails."""
        while True:
            errand = await self._errands.get()
            try:
                await errand()
            except Exception as error:
                self._failure = f"{self.name} could not be told something: {error}"
                return

    async def _answer(self, call: Awaitable[Answer]) -> Answer:
        """The elastic worker's answer. Raises EngineLost for whatever it fails with."""
        try:
            return await call
        except EngineLost:
            raise
        except Exception as error:
            raise EngineLost(f"{self.name}: {type(error).__name__}: {error}") from error
