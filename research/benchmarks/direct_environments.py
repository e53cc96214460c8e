"""Environments in the caller's own process: for tests and for the simulated engine. Nothing is
limited, killed, contained or restored."""

from __future__ import annotations

from tasks.environments.base import (
    Crashed,
    Environment,
    EnvironmentFailed,
    EnvironmentSettings,
    Transition,
)
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.processes.answers import checked_observation, checked_transition


class DirectEnvironments:
    """`EnvironmentProcesses` without processes."""

    def __init__(self, config: EnvironmentProcessConfig | None = None) -> None:
        """`config`: for the longest observation alone."""
        self._max_chars = (config or EnvironmentProcessConfig()).max_observation_chars
        self._episodes: dict[str, Environment] = {}

    async def warm(self) -> None:
        """Nothing is to be started."""

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str:
        """Begin an episode in an environment of its own."""
        try:
            environment = settings.build()
            observation = checked_observation(environment.reset(seed), self._max_chars)
        except Exception as error:  # whatever an environment raises is data
            raise _failed(error) from error
        self._episodes[episode_id] = environment
        return observation

    async def step(self, episode_id: str, text: str) -> Transition:
        """Take a turn."""
        environment = self._episodes.get(episode_id)
        if environment is None:
            raise Crashed("this pool knows no such episode")
        try:
            return checked_transition(environment.step(text), self._max_chars)
        except Exception as error:  # whatever an environment raises is data
            del self._episodes[episode_id]
            raise _failed(error) from error

    def snapshot(self, episode_id: str) -> bytes:
        """There is none: unpickling it would be for this process."""
        return b""

    async def end(self, episode_id: str) -> None:
        """Forget the episode."""
        self._episodes.pop(episode_id, None)

    def close(self) -> None:
        """Forget all episodes."""
        self._episodes.clear()


def _failed(error: Exception) -> EnvironmentFailed:
    said = str(error) if isinstance(error, Crashed) else f"{type(error).__name__}: {error}"
    return Crashed(said)
