"""Batches the turns of episodes for their engine, and hands each answer to its episode.

    turn(request) ─▶ outbox ─▶ (end of the loop's tick) ─▶ engine.submit, all of them
    engine.collect ─▶ a turn's answer wakes its episode; what is no episode's is handed on

The engine is polled only while it has requests to answer.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from artifacts.new_tokens import News, split_news
from artifacts.records import Generated, Request
from tasks.engines.base import Engine, EngineLost

POLL_S = 5.0  # longest single wait; it ends earlier when something is finished


class TurnBatcher:
    """Batches the turns of all episodes of one engine. Belongs to one event loop."""

    def __init__(
        self,
        engine: Engine,
        hand_on: Callable[[News], None],
        lose: Callable[[EngineLost], None],
    ) -> None:
        """hand_on: called with news of responses that are no turns. lose: called once the engine is
        gone; it cancels the episodes that wait for a turn."""
        self._engine = engine
        self._hand_on = hand_on
        self._lose = lose
        self._outbox: list[Request] = []
        self._waiting: dict[str, asyncio.Future[Generated]] = {}  # episodes, by response id
        self._inside: set[str] = set()  # response ids that the engine has to answer
        self._sending: set[asyncio.Task[None]] = set()
        self._collecting: asyncio.Task[None] | None = None

    async def turn(self, request: Request) -> Generated:
        """Submit a turn; returns the engine's answer, whole or aborted."""
        loop = asyncio.get_running_loop()
        if not self._outbox:
            loop.call_soon(self._send)
        self._outbox.append(request)
        answer: asyncio.Future[Generated] = loop.create_future()
        self._waiting[request.response_id] = answer
        return await answer

    async def pass_on(self, requests: Sequence[Request]) -> None:
        """Submit requests that are no turns, all or none."""
        await self._engine.submit(requests)
        self._note_inside(requests)

    async def abort(self, response_ids: Sequence[str]) -> None:
        """Stop those of these responses that the engine has; it answers each of them."""
        self._send()
        await asyncio.gather(*self._sending)
        inside = [name for name in response_ids if name in self._inside]
        if inside:
            await self._engine.abort(inside)

    async def clear(self) -> None:
        """Drop all turns and wait until the calls to the engine have ended."""
        tasks = [*self._sending, *([self._collecting] if self._collecting else [])]
        self.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Cancel all turns and make no further call to the engine."""
        for task in self._sending:
            task.cancel()
        if self._collecting is not None:
            self._collecting.cancel()
        for answer in self._waiting.values():
            answer.cancel()
        self._collecting = None
        self._outbox.clear()
        self._waiting.clear()
        self._inside.clear()

    def _send(self) -> None:
        batch, self._outbox = self._outbox, []
        if batch:
            self._note_inside(batch)
            sending = asyncio.create_task(self._guarded(partial(self._engine.submit, batch)))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    def _note_inside(self, requests: Sequence[Request]) -> None:
        self._inside.update(request.response_id for request in requests)
        if self._collecting is None and self._inside:
            self._collecting = asyncio.create_task(self._guarded(self._collect))

    async def _collect(self) -> None:
        while self._inside:
            over, begun = split_news(await self._engine.collect(POLL_S))
            for new in begun:
                # a turn that is half-way is kept when the environment has answered it
                if new.response_id not in self._waiting:
                    self._hand_on(new)
            for generated in over:
                self._inside.discard(generated.response_id)
                answer = self._waiting.pop(generated.response_id, None)
                if answer is None:
                    self._hand_on(generated)
                elif not answer.done():
                    answer.set_result(generated)
        self._collecting = None

    async def _guarded(self, call: Callable[[], Coroutine[None, None, None]]) -> None:
        """Await a call; after any error of it no episode could go on. The coroutine is made only if
        the task begins: Python warns of one that is never awaited."""
        try:
            await call()
        except EngineLost as error:
            self._lose(error)
        except Exception as error:
            cause = "".join(traceback.format_exception(error))
            self._lose(EngineLost(f"{self._engine.name}'s episodes cannot go on\n{cause}"))
