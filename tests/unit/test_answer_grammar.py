"""Answers drawn from a grammar: every spelling is paid for every other one, no near miss is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from answer_grammar import Pair, pairs

from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig

SEED = 2024


@pytest.fixture(scope="module")
def reward() -> Iterator[MathAnswer]:
    reward = MathAnswer(MathAnswerConfig(timeout_s=20.0))
    yield reward
    reward.close()


def mistaken(reward: MathAnswer, asked: list[Pair]) -> list[Pair]:
    rewards = (reward.judge(pair.gold, pair.text).reward for pair in asked)
    return [pair for pair, paid in zip(asked, rewards, strict=True) if paid != pair.is_right]


def test_spellings_are_paid_for_each_other_and_near_misses_for_none(reward: MathAnswer) -> None:
    asked = list(pairs(SEED, 1))
    right = [pair for pair in asked if pair.is_right]
    missed = [pair for pair in asked if not pair.is_right]
    assert len({pair.answer for pair in right}) >= 125
    assert min(len(right), len(missed)) >= 400
    assert mistaken(reward, missed) == []
    refused = mistaken(reward, right)
    assert len(refused) <= len(right) // 100, refused


def test_every_spelling_is_a_gold(reward: MathAnswer) -> None:
    for gold in {pair.gold for pair in pairs(SEED, 1) if pair.is_right}:
        reward.check_gold(gold)
        assert reward.judge(gold, f"Answer: {gold}").reward == 1.0, gold
