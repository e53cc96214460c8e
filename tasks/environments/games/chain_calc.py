"""chain_calc: a sum that is worked out with a calculator, one call after the other.

    What is 41 + 27 + 88?  ->  add 41 27  ->  68  ->  add 68 88  ->  156  ->  answer 156

A call adds two numbers and its result is an observation; `answer` ends the episode. The number of
terms is drawn, so that an episode played right has as many turns as the question has terms: most
are short, a few are long.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator

from artifacts.datasets.rows import Message
from tasks.environments.base import Environment, Transition
from tasks.environments.games.game import GameConfig
from tasks.environments.head import head

NUMBER = "([0-9]{1,12})"
ADD = re.compile(rf"add {NUMBER} {NUMBER}\.?")
ANSWER = re.compile(rf"answer {NUMBER}\.?")
INVALID = 'Say "add" and two numbers, or "answer" and one.'
RULES = (
    'You have a calculator. Say "add" and two numbers to use it, and I tell you the sum. Say'
    ' "answer" and the total when you know it. Reply with one line only.'
)
SHOTS = ((41, 27), (35, 62, 18), (73, 14), (12, 50, 26, 31))


class ChainCalcConfig(GameConfig):
    """Add up numbers with a calculator."""

    kind: Literal["chain_calc"] = Field(
        "chain_calc", description="Chooses sums that are worked out with a calculator."
    )
    max_turns: int = Field(10, ge=1, description="Calls and answers after which it is cut.")
    term_weights: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (0.6, 0.3, 0.1),
        description="How often a question has 2, 3, ... terms, relative to each other.",
    )
    largest_term: int = Field(99, ge=10, le=999_999, description="Largest number to be added.")

    @field_validator("term_weights")
    @classmethod
    def _check(cls, weights: tuple[float, ...]) -> tuple[float, ...]:
        if sum(weights) <= 0:
            raise ValueError(f"one of term_weights must be > 0, got {weights}; raise one")
        return weights

    def head(self) -> tuple[Message, ...]:
        """The rules and four sums, every one worked out with the calculator."""
        return head(RULES, [turn for terms in SHOTS for turn in played(terms)])

    def build(self) -> Environment:
        return ChainCalc(self)

    def valid_action(self, observations: Sequence[str], rng: random.Random) -> str:
        """The next call of somebody who adds up from left to right, then the answer."""
        turns = played([int(number) for number in re.findall(r"[0-9]+", observations[0])])
        num_results = sum(observation.isdigit() for observation in observations)
        return turns[min(num_results, len(turns) - 1)][1]


class ChainCalc:
    """One sum."""

    def __init__(self, config: ChainCalcConfig) -> None:
        self._config = config

    def reset(self, seed: int) -> str:
        rng, weights = random.Random(f"chain_calc/{seed}"), self._config.term_weights
        num_terms = 2 + rng.choices(range(len(weights)), weights)[0]
        self._terms = [rng.randint(10, self._config.largest_term) for _ in range(num_terms)]
        self._left = self._config.max_turns
        return question(self._terms)

    def step(self, text: str) -> Transition:
        self._left -= 1
        line, size = text.strip(), str(len(self._terms))
        if found := ANSWER.fullmatch(line):
            is_right = int(found[1]) == sum(self._terms)
            info = {"action": "answer", "terms": size}
            return Transition(
                "Right." if is_right else "Wrong.", float(is_right), True, False, info
            )
        call = ADD.fullmatch(line)
        said = str(int(call[1]) + int(call[2])) if call else INVALID
        info = {"action": "call" if call else "invalid", "terms": size}
        return Transition(said, 0.0, False, self._left <= 0, info)


def question(terms: Sequence[int]) -> str:
    """How a sum is asked for."""
    return f"What is {' + '.join(map(str, terms))}?"


def played(terms: Sequence[int]) -> list[tuple[str, str]]:
    """The sum worked out from left to right: every observation with its action."""
    total, turns, observation = terms[0], list[tuple[str, str]](), question(terms)
    for term in terms[1:]:
        turns.append((observation, f"add {total} {term}"))
        total += term
        observation = str(total)
    return [*turns, (observation, f"answer {total}")]
