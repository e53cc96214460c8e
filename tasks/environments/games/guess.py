"""guess: find a number from 1 to N in a few tries; every miss is answered by "Higher." or "Lower.".

    Guess a number from 1 to 20.  ->  7  ->  Higher.  ->  12  ->  Lower.  ->  9  (right: reward 1)

The observations do not repeat the interval that is left: to keep it in mind is the skill to learn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from artifacts.datasets.rows import Message
from tasks.environments.base import Environment, Transition, head_messages
from tasks.environments.games.game import GameConfig

ACTION = re.compile(r"([0-9]{1,9})\.?")


class Words(NamedTuple):
    """The sentences of the game."""

    begin: str
    higher: str
    lower: str
    invalid: str
    right: str
    lost: str


WORDS = {
    "chat": Words(
        begin="Guess a number from 1 to {largest}.",
        higher="Higher.",
        lower="Lower.",
        invalid="Say one number from 1 to {largest}.",
        right="Right.",
        lost="Out of tries.",
    ),
    "terse": Words(begin="=", higher="h", lower="l", invalid="x", right="y", lost="n"),
}
RULES = (
    "We play a game. I think of a number from 1 to {largest}. You have {tries} tries to guess it."
    " After each guess I say whether my number is higher or lower. Reply with one number only."
)


def narrowed(low: int, high: int, guess: int, *, is_higher: bool) -> tuple[int, int]:
    """Returns the smallest and the largest number that are possible after a miss."""
    return (max(low, guess + 1), high) if is_higher else (low, min(high, guess - 1))


class GuessConfig(GameConfig):
    """Guess a number."""

    knows_heedful_moves: ClassVar[bool] = True

    kind: Literal["guess"] = Field("guess", description="Chooses the guessing of a number.")
    max_turns: int = Field(
        5, ge=1, description="Tries; text that is no number of the range uses one up."
    )
    largest: int = Field(20, ge=2, le=999_999_999, description="Largest number it may be.")

    def chat_head(self) -> tuple[Message, ...]:
        """Returns the rules and two episodes that halve the remaining interval."""
        rules = RULES.format(largest=self.largest, tries=self.max_turns)
        shots = [self._shot(secret) for secret in (self.largest * 2 // 3, self.largest // 4 + 1)]
        return head_messages(rules, shots[0] + shots[1])

    def _shot(self, secret: int) -> list[tuple[str, str]]:
        words = self.words()
        low, high, observation = 1, self.largest, words.begin
        turns = list[tuple[str, str]]()
        while len(turns) < self.max_turns:
            guess = (low + high) // 2
            turns.append((observation, str(guess)))
            if guess == secret:
                break
            is_higher = secret > guess
            observation = words.higher if is_higher else words.lower
            low, high = narrowed(low, high, guess, is_higher=is_higher)
        return turns

    def words(self) -> Words:
        """Returns the sentences of the game in this style, with its numbers."""
        return Words(*(word.format(largest=self.largest) for word in WORDS[self.style]))

    def build(self) -> Environment:
        return Guess(self)

    def valid_action(self, observations: Sequence[str], rng: random.Random) -> str:
        """Returns any number of the range, whatever was observed."""
        return str(rng.randint(1, self.largest))

    def heedful_action(
        self, observations: Sequence[str], actions: Sequence[str], rng: random.Random
    ) -> str:
        """Returns any number that the answers so far leave possible."""
        words, low, high = self.words(), 1, self.largest
        for action, answer in zip(actions, observations[1:], strict=True):
            if answer in (words.higher, words.lower):
                low, high = narrowed(low, high, int(action), is_higher=answer == words.higher)
        return str(rng.randint(low, high))


class Guess:
    """A game with one secret number; `info` says if an action fits all answers before it."""

    def __init__(self, config: GuessConfig) -> None:
        self._config, self._words = config, config.words()

    def reset(self, seed: int) -> str:
        self._secret = random.Random(f"guess/{seed}").randint(1, self._config.largest)
        self._left = self._config.max_turns
        self._low, self._high = 1, self._config.largest
        return self._words.begin

    def step(self, text: str) -> Transition:
        self._left -= 1
        found = ACTION.fullmatch(text.strip())
        guess = int(found[1]) if found else 0
        if not 1 <= guess <= self._config.largest:
            return self._missed(self._words.invalid, "invalid")
        verdict = "consistent" if self._low <= guess <= self._high else "inconsistent"
        if guess == self._secret:
            return Transition(self._words.right, 1.0, True, False, {"action": verdict})
        is_higher = self._secret > guess
        self._low, self._high = narrowed(self._low, self._high, guess, is_higher=is_higher)
        return self._missed(self._words.higher if is_higher else self._words.lower, verdict)

    def _missed(self, answer: str, verdict: str) -> Transition:
        is_lost = self._left <= 0
        said = self._words.lost if is_lost else answer
        return Transition(said, 0.0, is_lost, False, {"action": verdict})
