"""Real environments with a note of what they did, and in lock step if that is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from benchmarks.slow_environments import LockStep, Played
from tasks.environments.base import EnvironmentHosts, EnvironmentSettings, Transition

Answer = TypeVar("Answer")


class WatchedHosts:
    """Other hosts, with a note of every episode that is begun; its turns in lock step, if any."""

    def __init__(self, inner: EnvironmentHosts, lock_step: LockStep | None = None) -> None:
        self.played: list[Played] = []  # in the order in which they were begun
        self._inner = inner
        self._lock_step = lock_step
        self._playing: dict[str, Played] = {}

    async def warm(self) -> None:
        await self._inner.warm()

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        played = Played(episode_id=episode_id, seed=seed, num_turns=0)
        self.played.append(played)
        self._playing[episode_id] = played
        return await self._call(
            played, lambda: self._inner.reset(episode_id, settings, seed, state)
        )

    async def step(self, episode_id: str, text: str) -> Transition:
        played = self._playing[episode_id]
        played.turn += 1
        return await self._call(played, lambda: self._inner.step(episode_id, text))

    def snapshot(self, episode_id: str) -> bytes:
        return self._inner.snapshot(episode_id)

    async def end(self, episode_id: str) -> None:
        self._playing.pop(episode_id, None)
        if self._lock_step is not None:
            self._lock_step.leave(episode_id)
        await self._inner.end(episode_id)

    def close(self) -> None:
        self._inner.close()

    async def _call(self, played: Played, call: Callable[[], Awaitable[Answer]]) -> Answer:
        if self._lock_step is not None:
            await self._lock_step.begin(played.episode_id)
        clock = asyncio.get_running_loop()
        began_s = clock.time()
        try:
            answer = await call()
        finally:
            played.busy_s += clock.time() - began_s
        if self._lock_step is not None:
            await self._lock_step.finish(played.episode_id)
        return answer
