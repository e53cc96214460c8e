"""The base of our own games: a player that always makes a valid move, and of some games one that
heeds the answers so far.

A warm-up imitates them, so that a model learns the form of an action before it is rewarded for
choosing one; the conformance suite plays with the first, because garbage alone never gets far.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from artifacts.datasets.rows import Message
from tasks.environments.base import EMPTY_HEAD, EnvironmentSettings


class GameConfig(EnvironmentSettings):
    """A game whose valid moves are known."""

    knows_heedful_moves: ClassVar[bool] = False

    def valid_action(self, observations: Sequence[str], rng: random.Random) -> str:
        """A valid move after the observations of an episode so far."""
        raise NotImplementedError

    def heedful_action(
        self, observations: Sequence[str], actions: Sequence[str], rng: random.Random
    ) -> str:
        """A valid move that takes account of the episode so far, of a game that knows such."""
        raise NotImplementedError

    def demonstrate(
        self, seed: int, rng: random.Random, *, is_heedful: bool = False
    ) -> list[tuple[str, str]]:
        """An episode of valid moves, heedful ones if asked for: every observation with the action
        that answers it."""
        environment = self.build()
        observations, actions = [environment.reset(seed)], list[str]()
        while len(actions) < self.max_turns:
            actions.append(
                self.heedful_action(observations, actions, rng)
                if is_heedful
                else self.valid_action(observations, rng)
            )
            turn = environment.step(actions[-1])
            if turn.terminated or turn.truncated:
                break
            observations.append(turn.observation)
        return list(zip(observations, actions, strict=True))


class StyledGameConfig(GameConfig):
    """A game for a chat model that the tiny model can play, too."""

    style: Literal["chat", "terse"] = Field(
        "chat",
        description="'chat': sentences, for a chat model; 'terse': characters, for the tiny model.",
    )

    def head(self) -> tuple[Message, ...]:
        """The tiny model knows the rules from its warm-up."""
        return EMPTY_HEAD if self.style == "terse" else self.chat_head()

    def chat_head(self) -> tuple[Message, ...]:
        """The rules, and episodes played as examples."""
        raise NotImplementedError
