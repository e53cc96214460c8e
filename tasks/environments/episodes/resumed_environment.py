"""The environment of one episode, brought to where the episode is.

    resume ─▶ reset ─▶ restored from the snapshot, or led through the recorded actions ─▶ step, ...
                                                       └▶ says something else: forget, and again

Counts resets, replayed turns and restarts for the records. Leaves out the turns themselves, and the
loss of an environment (`play`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from artifacts.episodes import Episode
from artifacts.records import Request
from tasks.environments.base import EnvironmentProcesses, EnvironmentSettings, Transition
from tasks.environments.episodes.episode import EpisodeSoFar

logger = logging.getLogger(__name__)


class ResumedEnvironment:
    """The environment of one episode. Calls raise EnvironmentFailed."""

    def __init__(
        self,
        request: Request,
        processes: EnvironmentProcesses,
        settings: EnvironmentSettings,
        clock: Callable[[], float],
    ) -> None:
        """clock: in seconds."""
        # what is counted of the episode from its first reset on; its turns are not kept here
        self.counted = request.kept_episode or Episode(turns=(), ending=None)
        self._name = request.response_id
        self._domain, self._seed = request.environment, request.episode_seed
        self._processes, self._settings, self._clock = processes, settings, clock

    async def resume(self, so_far: EpisodeSoFar) -> str | None:
        """Bring an environment to the turn where the episode is; returns its observation there. If
        the environment does not repeat the record, ends it and returns None."""
        snapshot = so_far.snapshot
        observation = await self._reset(snapshot.state if snapshot else b"")
        if observation is None:
            assert snapshot is not None, "nothing else restores an environment"
            observation = snapshot.observation
        else:
            observation = await self._replayed(so_far, observation)
        if observation is None:
            await self.end()
        elif so_far.turns:
            self.counted = replace(self.counted, num_resumed=self.counted.num_resumed + 1)
        return observation

    def forget(self, so_far: EpisodeSoFar) -> None:
        """Count that the episode begins again: its environment does not repeat the record."""
        logger.warning(
            "episode=%s begins again: its environment %s does not repeat itself",
            self._name,
            self._domain,
        )
        self.counted = replace(
            self.counted,
            num_restarted=self.counted.num_restarted + 1,
            num_forgotten=self.counted.num_forgotten + so_far.num_sampled,
        )

    async def step(self, action: str) -> Transition:
        """Take a turn."""
        return await self._processes.step(self._name, action)

    def snapshot(self) -> bytes:
        """The environment's state after the last step; empty where there is none."""
        return self._processes.snapshot(self._name)

    async def end(self) -> None:
        """Release the environment; the episode is over."""
        await self._processes.end(self._name)

    async def _reset(self, state: bytes) -> str | None:
        """Begin an environment; returns its first observation, None if it goes on from this
        state."""
        began_s = self._clock()
        observation = await self._processes.reset(self._name, self._settings, self._seed, state)
        took_s = self._clock() - began_s
        self.counted = replace(self.counted, reset_s=self.counted.reset_s + took_s)
        return observation

    async def _replayed(self, so_far: EpisodeSoFar, observation: str) -> str | None:
        """Repeat the recorded actions after this first observation; returns the observation after
        them, None if one differs from the record."""
        for turn in so_far.turns:
            if observation != turn.observation:
                return None
            if turn.answered_s is None:
                break
            transition = await self.step(turn.action)
            self.counted = replace(self.counted, num_replayed=self.counted.num_replayed + 1)
            is_over = transition.terminated or transition.truncated
            if is_over or transition.reward != turn.reward:
                return None
            observation = transition.observation
        return observation
