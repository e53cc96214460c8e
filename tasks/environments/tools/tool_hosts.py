"""Hosts of environments, with a sandbox beside them for the programs that models ask to have run.

    step ─▶ the environment takes the turn ─▶ a program in the action? ─▶ run ─▶ what it said
                                           └▶ none ─▶ the environment's own observation

The program runs once the environment has answered, in no process that knows the environment.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from artifacts.episodes import Ending
from tasks.environments.base import (
    EnvironmentFailed,
    EnvironmentHosts,
    EnvironmentSettings,
    RequestedProgram,
    Transition,
)
from tasks.environments.tools.program_runner import NUM_SANDBOXES, ProgramRunner
from tasks.isolation.isolation import Isolation


class ToolHosts:
    """`EnvironmentHosts` around others."""

    def __init__(self, inner: EnvironmentHosts, isolation: Isolation) -> None:
        self._inner = inner
        self._isolation = isolation
        self._settings: dict[str, EnvironmentSettings] = {}  # by episode
        self._runner: ProgramRunner | None = None  # from the first program on
        self._threads = ThreadPoolExecutor(NUM_SANDBOXES, thread_name_prefix="programs")
        self._is_closed = False

    async def warm(self) -> None:
        """Ready the others; a sandbox is started with the first program."""
        await self._inner.warm()

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        """Begin an episode, or go on from a state."""
        observation = await self._inner.reset(episode_id, settings, seed, state)
        self._settings[episode_id] = settings
        return observation

    async def step(self, episode_id: str, text: str) -> Transition:
        """Take a turn, and run its program. A program whose episode is ended meanwhile goes on to
        its limit at most."""
        transition = await self._inner.step(episode_id, text)
        settings = self._settings.get(episode_id)
        program = settings.program_in(text) if settings else None
        if program is None:
            return transition
        return transition._replace(observation=await self._said(program))

    def snapshot(self, episode_id: str) -> bytes:
        """The environment's: a program leaves nothing behind."""
        return self._inner.snapshot(episode_id)

    async def end(self, episode_id: str) -> None:
        """Nobody goes on with it."""
        self._settings.pop(episode_id, None)
        await self._inner.end(episode_id)

    def close(self) -> None:
        """End every process."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._runner is not None:
            self._runner.close()
        self._inner.close()

    async def _said(self, program: RequestedProgram) -> str:
        if self._is_closed:
            raise EnvironmentFailed(Ending.CRASHED, "these hosts are closed")
        self._runner = self._runner or ProgramRunner(self._isolation)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._runner.run, program)
