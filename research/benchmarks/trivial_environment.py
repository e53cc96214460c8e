"""An environment that does next to nothing, so that what is measured is its host."""

from __future__ import annotations

from artifacts.datasets.rows import Message
from tasks.environments.base import EnvironmentSettings, Transition


class Trivial(EnvironmentSettings):
    """Counts."""

    def head(self) -> tuple[Message, ...]:
        """One rule."""
        return (Message(role="system", content="Say anything."),)

    def build(self) -> Counter:
        """Needs nothing."""
        return Counter()


class Counter:
    """An observation of a dozen letters."""

    def __init__(self) -> None:
        self._turn = 0

    def reset(self, seed: int) -> str:
        """Begin with nothing."""
        self._turn = 0
        return f"seed {seed}"

    def step(self, text: str) -> Transition:
        """Count."""
        self._turn += 1
        return Transition(f"turn {self._turn}: go on", 0.0, False, False, {})
