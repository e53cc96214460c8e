"""chain-sum: a character-level task that a model of under a million parameters learns, for runs of
a minute on two cores.

    question  a3b2c2d1=
    response  a3b5c7d8     each term's letter with the sum so far: long questions, long answers
              Answer: 8

A letter says which term a digit belongs to. People are shown "3 + 2 + 2 + 1 =" (`plain_signs`).

Demonstrations for the supervised warm-up have a known share of wrong steps: the model is then right
only sometimes, and reinforcement learning can improve it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.rows import (
    Dataset,
    Row,
    belongs_to_heldout,
    generate,
    pareto_size,
    question_row,
)
from artifacts.printable import CHAIN_SUM

MIN_TERMS, MAX_TERMS = 2, 24
MAX_TERM = 3
ANSWER = "\nAnswer: "
CHARACTERS = ascii_lowercase + "0123456789="


class ChainSumConfig(FrozenConfig):
    """Sums of digits that are labelled with letters; the number of terms is Pareto-drawn."""

    kind: Literal["chain_sum"] = Field(
        "chain_sum", description="Chooses character-level sums for the tiny model."
    )
    num_prompts: int = Field(4096, ge=1, description="Questions to train on.")
    heldout_prompts: int = Field(
        256, ge=0, description="Questions to evaluate on; none of them is trained."
    )
    min_terms: int = Field(
        MIN_TERMS,
        ge=MIN_TERMS,
        le=MAX_TERMS,
        description="Smallest number of terms; of 2 there are nine questions.",
    )
    max_terms: int = Field(
        MAX_TERMS, ge=MIN_TERMS, le=MAX_TERMS, description="Largest number of terms."
    )
    alpha: float = Field(
        1.3,
        gt=0,
        description="Pareto exponent of the number of terms; smaller means more long questions.",
    )

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        if self.min_terms > self.max_terms:
            raise ValueError(
                f"min_terms must be <= max_terms ({self.max_terms}), got {self.min_terms}; lower it"
            )
        return self

    def load(self, seed: int) -> Dataset:
        """Generate the questions for this configuration and seed."""

        def draw(rng: random.Random) -> Row:
            terms = draw_terms(rng, self.min_terms, self.max_terms, self.alpha)
            return question_row(CHAIN_SUM, question(terms), str(sum(terms)))

        return generate("chain_sum", draw, seed, self.num_prompts, self.heldout_prompts)


def draw_terms(rng: random.Random, min_terms: int, max_terms: int, alpha: float) -> tuple[int, ...]:
    """Draw terms from 1 to 3. Their number is Pareto-drawn from min_terms to max_terms."""
    num_terms = pareto_size(rng, min_terms, max_terms, alpha)
    return tuple(rng.randint(1, MAX_TERM) for _ in range(num_terms))


def question(terms: Sequence[int]) -> str:
    """The question's text: the terms in order, each after its letter, then "="."""
    return f"{_lettered(terms)}="


def _lettered(numbers: Sequence[int]) -> str:
    return "".join(f"{at}{number}" for at, number in zip(ascii_lowercase, numbers, strict=False))


_TYPED = re.compile(r"\s*\d+(?:\s*\+\s*\d+)+\s*=?\s*")


def in_letters(text: str) -> str:
    """A typed sum, "3 + 1 + 2 =", as the question that the model knows; other text stays."""
    if not _TYPED.fullmatch(text):
        return text
    return question([int(number) for number in re.findall(r"\d+", text)][:MAX_TERMS])


def demonstration(
    terms: Sequence[int], rng: random.Random, wrong_share: float, ramble_share: float
) -> str:
    """A response to `question(terms)`: each step is wrong with probability wrong_share, after which
    the chain continues from the wrong sum; it goes on beyond the last term with ramble_share."""
    total, steps = 0, []
    for term in terms:
        total += term
        if rng.random() < wrong_share:
            total = max(1, total + rng.choice((-2, -1, 1, 2)))
        steps.append(total)
    if rng.random() < ramble_share:
        while len(steps) < len(ascii_lowercase) and rng.random() < 0.9:
            total += rng.randint(0, MAX_TERM)
            steps.append(total)
    return f"{_lettered(steps)}{ANSWER}{total}"


def draw_training_terms(rng: random.Random, alpha: float) -> tuple[int, ...]:
    """Draw the terms of a question that no dataset holds out."""
    while True:
        terms = draw_terms(rng, MIN_TERMS, MAX_TERMS, alpha)
        if not belongs_to_heldout(question(terms)):
            return terms
