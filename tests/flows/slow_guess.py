"""A guessing game that some of its seeds begin slowly, for runs whose schedule should notice."""

from __future__ import annotations

import time
from typing import Any

from tasks.environments.base import Transition
from tasks.environments.games.guess import GuessConfig

SLOW_S = 15.0  # longer than the other episodes of a round take altogether


def is_slow(seed: int) -> bool:
    """Every third of the seeds that are trained, which are even; none that is held out."""
    return seed % 6 == 0


class SlowGuess:
    """The game of these settings, after a while."""

    def __init__(self, **settings: Any) -> None:  # Any: of GuessConfig
        self._game = GuessConfig(**settings).build()

    def reset(self, seed: int) -> str:
        time.sleep(SLOW_S * is_slow(seed))
        return self._game.reset(seed)

    def step(self, text: str) -> Transition:
        return self._game.step(text)
