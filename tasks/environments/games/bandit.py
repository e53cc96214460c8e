"""bandit: a few buttons that pay fixed coins, and a few presses to find the best and stay with it.

    Press A, B or C.  ->  B  ->  4 coins.  ->  A  ->  9 coins.  ->  A  ->  9 coins.

A press is worth its coins as a share of what the best button pays in a whole episode.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Literal

from pydantic import Field

from artifacts.datasets.rows import Message
from tasks.environments.base import Environment, Transition, head_messages
from tasks.environments.games.game import GameConfig

LARGEST_PAY = 9
RULES = (
    "You have {buttons} buttons, {names}. Each always pays the same number of coins, from 0 to"
    f" {LARGEST_PAY}. You have {{presses}} presses. Get as many coins as you can. Reply with one"
    " letter only."
)


class BanditConfig(GameConfig):
    """Find the button that pays best."""

    kind: Literal["bandit"] = Field("bandit", description="Chooses buttons that pay coins.")
    max_turns: int = Field(
        6, ge=1, description="Presses; text that names no button uses one up and pays nothing."
    )
    buttons: int = Field(3, ge=2, le=8, description="How many buttons there are.")

    def chat_head(self) -> tuple[Message, ...]:
        """Returns the rules and one episode that tries every button and stays with the best."""
        rules = RULES.format(
            buttons=self.buttons, names=listed(self.names()), presses=self.max_turns
        )
        bandit, names = Bandit(self), self.names()
        observation = bandit.reset(0)
        bandit.pays = [(4 + 5 * index) % (LARGEST_PAY + 1) for index in range(self.buttons)]
        best = max(range(self.buttons), key=bandit.pays.__getitem__)
        turns = list[tuple[str, str]]()
        for press in range(self.max_turns):
            turns.append((observation, names[press if press < self.buttons else best]))
            observation = bandit.step(turns[-1][1]).observation
        return head_messages(rules, turns)

    def names(self) -> str:
        """Returns one letter for every button, as a string."""
        letters = ascii_uppercase[: self.buttons]
        return letters.lower() if self.style == "terse" else letters

    def build(self) -> Environment:
        return Bandit(self)

    def valid_action(self, observations: Sequence[str], rng: random.Random) -> str:
        """Returns any button."""
        return rng.choice(self.names())


class Bandit:
    """The buttons of one episode."""

    def __init__(self, config: BanditConfig) -> None:
        self._config, self._is_terse = config, config.style == "terse"
        self._begin = "=" if self._is_terse else f"Press {listed(config.names())}."

    def reset(self, seed: int) -> str:
        rng = random.Random(f"bandit/{seed}")
        self.pays = [rng.randint(0, LARGEST_PAY) for _ in range(self._config.buttons)]
        self.pays[rng.randrange(self._config.buttons)] = rng.randint(1, LARGEST_PAY)
        self._left = self._config.max_turns
        return self._begin

    def step(self, text: str) -> Transition:
        self._left -= 1
        name = text.strip().removesuffix(".")
        is_over = self._left <= 0
        if len(name) != 1 or name not in self._config.names():
            said = "x" if self._is_terse else self._begin
            return Transition(said, 0.0, is_over, False, {"action": "invalid"})
        pay = self.pays[self._config.names().index(name)]
        share = pay / (max(self.pays) * self._config.max_turns)
        said = str(pay) if self._is_terse else f"{pay} coin{'s' * (pay != 1)}."
        return Transition(said, share, is_over, False, {"action": "valid"})


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: "A, B or C"."""
    return f"{', '.join(names[:-1])} or {names[-1]}"
