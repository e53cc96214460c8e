"""The Environment seam: something a model talks to, in text, for one turn or many.

    observation = reset(seed) -> step(action text) -> Transition -> ... until terminated or
    truncated

An environment draws random numbers from the seed of its reset only, and pickles between turns, so
that an episode can move to another worker. Tokens, sampling and turn budgets belong to the engine
and its driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Transition(NamedTuple):
    """What a turn of the model led to."""

    observation: str  # what the model reads next; empty when the episode is over
    reward: float | None  # reward of the turn; None where a Reward judges the finished response
    terminated: bool  # the episode reached an end of its own
    truncated: bool  # a bound on turns cut it
    info: Mapping[str, str]  # details for the records


class Environment(Protocol):
    """One episode at a time."""

    def reset(self, seed: int) -> str:
        """Begin an episode; the first observation."""
        ...

    def step(self, text: str) -> Transition:
        """Take the model's turn. Text that is no valid action is part of the game and never
        raises."""
        ...
