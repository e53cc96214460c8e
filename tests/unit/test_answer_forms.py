"""Answers of every form that golds take: the right are accepted, near misses are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig

TABLE = Path(__file__).with_name("answer_forms.txt")
# A condition on the letter as an element of the list, a decimal in a floor, a date with a comma.
REFUSED = {r"x \in \mathbb{R}, x \neq 0", r"\lfloor 0.5n \rfloor", "Monday, March 3"}
PAID = {"((4-x)^3)^{1/3}"}  # real on one side of its kink only, where it is the gold
SIZES = {"first": 818, "second": 633, "third": 534, "fourth": 91, "reported": 78, "fifth": 139}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One line of the table."""

    batch: str  # name
    gold: str
    answer: str
    is_right: bool
    is_boxed: bool  # otherwise it stands on a line


def asked() -> Iterator[Asked]:
    batch = gold = ""
    for line in TABLE.read_text().splitlines():
        sign, _, text = line.partition(" ")
        if sign == "##":
            batch = text
        elif sign == "=":
            gold = text
        elif sign in ("+", "-", "+:", "-:"):
            is_right, is_boxed = sign[0] == "+", len(sign) == 1
            yield Asked(batch=batch, gold=gold, answer=text, is_right=is_right, is_boxed=is_boxed)


def is_paid(reward: MathAnswer, question: Asked, *, is_boxed: bool) -> bool:
    text = f"\\boxed{{{question.answer}}}" if is_boxed else f"Answer: {question.answer}"
    return reward.judge(question.gold, text).reward == 1.0


@pytest.fixture(scope="module")
def reward() -> Iterator[MathAnswer]:
    reward = MathAnswer(MathAnswerConfig(timeout_s=20.0))
    yield reward
    reward.close()


@pytest.mark.parametrize("batch", SIZES)
def test_near_miss_is_refused_and_right_answer_accepted(reward: MathAnswer, batch: str) -> None:
    questions = [question for question in asked() if question.batch == batch]
    assert len(questions) == SIZES[batch]
    for question in questions:
        exceptions = REFUSED if question.is_right else PAID
        if is_paid(reward, question, is_boxed=question.is_boxed) is not question.is_right:
            assert question.answer in exceptions, question


@pytest.mark.parametrize("batch", SIZES)
def test_answers_on_lines_are_judged_like_boxed_ones(reward: MathAnswer, batch: str) -> None:
    questions = [question for question in asked() if question.batch == batch]
    for question in questions:
        exceptions = REFUSED if question.is_right else PAID
        if is_paid(reward, question, is_boxed=False) is not question.is_right:
            assert question.answer in exceptions, question


def test_every_gold_of_the_table_passes_the_check(reward: MathAnswer) -> None:
    for gold in {question.gold for question in asked()}:
        reward.check_gold(gold)
