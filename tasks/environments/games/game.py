"""The base of our own games. Each game has a player that makes valid moves, and some have one that
also heeds the answers so far. The warm-up of a model imitates these players, and the conformance
suite plays with the first one, because invalid text alone never gets far.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from artifacts.datasets.rows import Message
from tasks.environments.base import EMPTY_HEAD, EnvironmentSettings


class GameConfig(EnvironmentSettings):
    """A game whose valid moves are known, for a chat model or for the tiny model."""

    knows_heedful_moves: ClassVar[bool] = False

    style: Literal["chat", "terse"] = Field(
        "chat",
        description="'chat': sentences, for a chat model; 'terse': characters, for the tiny model.",
    )

    def head(self) -> tuple[Message, ...]:
        """Returns an empty head in style terse, as the tiny model knows the rules from its warm-up;
        else `chat_head`."""
        return EMPTY_HEAD if self.style == "terse" else self.chat_head()

    def chat_head(self) -> tuple[Message, ...]:
        """Returns the rules, and episodes played as examples."""
        raise NotImplementedError

    def valid_action(self, observations: Sequence[str], rng: random.Random) -> str:
        """Returns a valid move after the observations of an episode so far."""
        raise NotImplementedError

    def heedful_action(
        self, observations: Sequence[str], actions: Sequence[str], rng: random.Random
    ) -> str:
        """Returns a valid move that heeds the episode so far, if the game `knows_heedful_moves`."""
        raise NotImplementedError

    def demonstrate(
        self, seed: int, rng: random.Random, *, is_heedful: bool = False
    ) -> list[tuple[str, str]]:
        """Play an episode of valid moves; returns every observation with its action."""
        environment = self.build()
        observation, seen, actions = environment.reset(seed), list[str](), list[str]()
        while len(actions) < self.max_turns:
            seen.append(observation)
            if is_heedful:
                actions.append(self.heedful_action(seen, actions, rng))
            else:
                actions.append(self.valid_action(seen, rng))
            observation, _, terminated, truncated, _ = environment.step(actions[-1])
            if terminated or truncated:
                break
        return list(zip(seen, actions, strict=True))
