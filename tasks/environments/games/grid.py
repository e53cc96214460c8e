"""grid: walk to a goal on a square of a few fields, with a few moves to spare.

    At 0 3, goal 2 1.  ->  right  ->  At 1 3, goal 2 1.  ->  down  ->  At 1 2, goal 2 1.  -> ...

Every observation gives the place and the goal: nothing need be remembered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from artifacts.datasets.rows import Message
from tasks.environments.base import Environment, Transition, head_messages
from tasks.environments.games.game import GameConfig

MOVES = {"left": (-1, 0), "right": (1, 0), "down": (0, -1), "up": (0, 1)}
RULES = (
    "You walk on a square of {size} by {size} fields. right and left change the first number by 1,"
    " up and down the second. Go to the goal. Reply with one word only: left, right, down or up."
)
Square = tuple[int, int]
SHOTS: tuple[tuple[Square, Square], ...] = (((0, 2), (2, 1)), ((2, 0), (1, 2)))


class GridConfig(GameConfig):
    """Walk to a goal."""

    kind: Literal["grid"] = Field("grid", description="Chooses a walk to a goal on a square.")
    size: int = Field(4, ge=3, le=9, description="Fields of a side.")
    spare_moves: int = Field(3, ge=0, description="Moves beyond those of the shortest way.")

    def chat_head(self) -> tuple[Message, ...]:
        """Returns the rules and two shortest walks: to the side first, then up or down."""
        turns = list[tuple[str, str]]()
        for (x, y), goal in SHOTS:
            while (x, y) != goal:
                if x != goal[0]:
                    word = "right" if x < goal[0] else "left"
                else:
                    word = "up" if y < goal[1] else "down"
                turns.append((self.told((x, y), goal), word))
                x, y = x + MOVES[word][0], y + MOVES[word][1]
        return head_messages(RULES.format(size=self.size), turns)

    def told(self, place: Square, goal: Square) -> str:
        """Returns the observation at a place."""
        if self.style == "terse":
            return "".join(map(str, (*place, *goal)))
        return f"At {place[0]} {place[1]}, goal {goal[0]} {goal[1]}."

    def words(self) -> dict[str, Square]:
        """Returns the moves by the word that the model says."""
        return {word[0]: move for word, move in MOVES.items()} if self.style == "terse" else MOVES

    def build(self) -> Environment:
        return Grid(self)

    def valid_action(self, observations: Sequence[str], rng: random.Random) -> str:
        """Returns any move."""
        return rng.choice(list(self.words()))


class Grid:
    """One walk. A move against the wall changes nothing."""

    def __init__(self, config: GridConfig) -> None:
        self._config, self._words = config, config.words()

    def reset(self, seed: int) -> str:
        size = self._config.size
        start, goal = random.Random(f"grid/{seed}").sample(range(size * size), 2)
        self._place, self._goal = divmod(start, size), divmod(goal, size)
        distance = sum(abs(a - b) for a, b in zip(self._place, self._goal, strict=True))
        self._moves_left = distance + self._config.spare_moves
        self._turns_left = self._config.max_turns
        return self._config.told(self._place, self._goal)

    def step(self, text: str) -> Transition:
        self._moves_left, self._turns_left = self._moves_left - 1, self._turns_left - 1
        move = self._words.get(text.strip().removesuffix("."))
        if move:
            x, y = self._place[0] + move[0], self._place[1] + move[1]
            last = self._config.size - 1
            self._place = min(max(x, 0), last), min(max(y, 0), last)
        is_there = self._place == self._goal
        is_over = is_there or self._moves_left <= 0
        return Transition(
            observation=self._config.told(self._place, self._goal),
            reward=float(is_there),
            terminated=is_over,
            truncated=not is_over and self._turns_left <= 0,
            info={"action": "valid" if move else "invalid"},
        )
