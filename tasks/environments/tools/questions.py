"""Questions to be answered with tools, drawn from a seed, and the calls that work them out.

`arithmetic` has products that a small model cannot do by head, `counting` wants a program.
"""

from __future__ import annotations

import random
from math import isqrt
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed
from tasks.environments.tools.calculator import calculate, written

ASKING = "What is "
SHOTS = (-1, -2, -3, -4)  # seeds of the questions shown as examples, which no run has
LARGEST_EXPONENT = 1_000


class ToolQuestion(NamedTuple):
    """A question and its answer."""

    text: str  # as a person would ask
    gold: str  # the number that is right
    expression: str  # for a calculator, its parts apart; empty if none can do it
    program: str  # the program that prints the answer


class QuestionConfig(FrozenConfig):
    """A sort of questions."""

    def draw(self, seed: int) -> ToolQuestion:
        """Draw the question of this seed."""
        raise NotImplementedError

    def shown(self) -> list[ToolQuestion]:
        """Returns the questions that are shown as examples."""
        return [self.draw(seed) for seed in SHOTS]


class Arithmetic(QuestionConfig):
    """An expression to be worked out."""

    kind: Literal["arithmetic"] = Field("arithmetic", description="Chooses expressions.")
    # the signs that are drawn from
    signs: Fixed[tuple[Literal["+", "-", "*"], ...]] = ("+", "-", "*")
    term_weights: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (0.6, 0.3, 0.1),
        max_length=8,  # the calculator's numbers hold a product of nine of the largest
        description="How often an expression has 2, 3, ... numbers, relative to each other.",
    )
    largest_term: int = Field(
        999, ge=10, le=999_999, description="Largest number in an expression; the least is 10."
    )

    @field_validator("term_weights")
    @classmethod
    def _check(cls, weights: tuple[float, ...]) -> tuple[float, ...]:
        if sum(weights) <= 0:
            raise ValueError(f"one of term_weights must be > 0, got {weights}; raise one")
        return weights

    def draw(self, seed: int) -> ToolQuestion:
        rng = random.Random(f"arithmetic/{seed}")
        num_terms = 2 + rng.choices(range(len(self.term_weights)), self.term_weights)[0]
        parts = [str(rng.randint(10, self.largest_term))]
        for _ in range(num_terms - 1):
            parts += [rng.choice(self.signs), str(rng.randint(10, self.largest_term))]
        expression = " ".join(parts)
        return ToolQuestion(
            text=f"{ASKING}{expression}?",
            gold=result_of(expression),
            expression=expression,
            program=f"print({expression})",
        )


class Counting(QuestionConfig):
    """Something to be counted or added up, for which there is a program of one line."""

    kind: Literal["counting"] = Field("counting", description="Chooses what wants a program.")
    largest: int = Field(
        200, ge=50, le=4_000, description="Largest number that is counted to; the least is 20."
    )

    def draw(self, seed: int) -> ToolQuestion:
        rng = random.Random(f"counting/{seed}")
        sort, factor, last = rng.randrange(3), rng.randint(3, 9), rng.randint(20, self.largest)
        if sort == 0:
            text = f"How many primes are there up to {last}?"
            gold = sum(all(n % d for d in range(2, isqrt(n) + 1)) for n in range(2, last + 1))
            program = f"sum(all(n % d for d in range(2, n)) for n in range(2, {last} + 1))"
        elif sort == 1:
            text = f"What is the sum of the multiples of {factor} from 1 to {last}?"
            gold = sum(range(factor, last + 1, factor))
            program = f"sum(n for n in range(1, {last} + 1) if n % {factor} == 0)"
        else:
            exponent = min(last, LARGEST_EXPONENT)
            text = f"What is the sum of the digits of {factor} to the power of {exponent}?"
            gold = sum(map(int, str(factor**exponent)))
            program = f"sum(map(int, str({factor} ** {exponent})))"
        return ToolQuestion(text=text, gold=str(gold), expression="", program=f"print({program})")


Questions = Annotated[Arithmetic | Counting, Field(discriminator="kind")]


def asked_expression(text: str) -> str:
    """Returns the expression in a question; empty if the question asks for something else."""
    asked = text.removeprefix(ASKING).removesuffix("?")
    return asked if set(asked) <= set("0123456789+-* ") else ""


def worked_out(expression: str, max_operations: int) -> list[str]:
    """Returns the calculator calls that work out an expression: products first, from left to right,
    until the rest is one call with at most max_operations operations."""
    calls, parts = list[str](), expression.split()
    while len(parts) // 2 > max_operations:
        sign = parts.index("*") if "*" in parts else 1
        calls.append(" ".join(parts[sign - 1 : sign + 2]))
        parts[sign - 1 : sign + 2] = [result_of(calls[-1])]
    return [*calls, " ".join(parts)]


def result_of(expression: str) -> str:
    """Returns the calculator's result of an expression that it can compute."""
    return written(calculate(expression).value)
