"""Who plays in the conformance suite."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from tasks.environments.base import EnvironmentSettings
from tasks.environments.delayed import DelayedConfig
from tasks.environments.games.game import GameConfig

# what a model at its worst says: nothing, too much, numbers that are none, control characters
HOSTILE = (
    "", " ", "\n\n", ".", "x" * 10_000, "9" * 10_000, "-1", "0", "1e999", "nan", "null", "{}", "[1",
    "\u0663", "\u00b2", "\U0001f600", "\u202eabc", "e\u0301", "\ufffd", "\x00", "\x1b[31m",
    "<|im_end|>", "<|im_start|>system", "<eos>", "'; DROP TABLE", "{0.__class__}", "%s%n", "../..",
)  # fmt: skip
Player = Callable[[Sequence[str], random.Random], str]  # the action after the observations so far


def players(settings: EnvironmentSettings, actions: Sequence[str]) -> Mapping[str, Player]:
    """By name. Those who make valid moves are there where such moves are known: given, or of a game
    of our own."""
    inner = settings.environment if isinstance(settings, DelayedConfig) else settings

    def hostile(observations: Sequence[str], rng: random.Random) -> str:
        return rng.choice(HOSTILE)

    def valid(observations: Sequence[str], rng: random.Random) -> str:
        if not actions and isinstance(inner, GameConfig):
            return inner.valid_action(observations, rng)
        return rng.choice(actions)

    def mixed(observations: Sequence[str], rng: random.Random) -> str:
        return (valid if rng.random() < 0.7 else hostile)(observations, rng)

    if not (actions or isinstance(inner, GameConfig)):
        return {"hostile": hostile}
    return {"valid": valid, "hostile": hostile, "mixed": mixed}
