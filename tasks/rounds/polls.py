"""Waiting for several sources at once: one open question to each, answers in the order they came.

    ask(source, question) ─▶ await next(wait_s): (source, its answered question) ─▶ ask(source, ...)

Leaves out who is worth asking and what an answer means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

Answer = asyncio.Task[
    Any
]  # Any: whatever the source says; its result() gives that or raises the source's error


class Polls:
    """The questions that are open. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, Answer] = {}
        # sources whose question has ended, some of them dropped since
        self._answered: deque[str] = deque()
        self._has_answered = asyncio.Event()

    def is_asked(self, source: str) -> bool:
        """Whether a question to this source is open."""
        return source in self._open

    def ask(self, source: str, question: Coroutine[Any, Any, Any]) -> None:  # Any: see Answer
        """Put a question to a source that has none open."""
        self._open[source] = asyncio.create_task(question)
        self._open[source].add_done_callback(lambda _: self._note(source))

    def _note(self, source: str) -> None:
        self._answered.append(source)
        self._has_answered.set()

    async def next(self, wait_s: float) -> tuple[str, Answer]:
        """The next source to answer, and the ended task. Raises TimeoutError when none does within
        wait_s."""
        ends_s = asyncio.get_running_loop().time() + wait_s
        while True:
            while self._answered:
                source = self._answered.popleft()
                if source in self._open and self._open[source].done():
                    return source, self._open.pop(source)
            self._has_answered.clear()
            async with asyncio.timeout_at(ends_s):
                await self._has_answered.wait()

    def drop(self, source: str) -> None:
        """Forget a question, if one is open."""
        if source in self._open:
            self._open.pop(source).cancel()

    def close(self) -> None:
        """Forget every question."""
        for source in list(self._open):
            self.drop(source)
