"""The reward for an answer and its working: what is paid for the lines on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_factories import make_generated, make_prompt

from artifacts.records import Outcome
from tasks.rewards.maths.math_answer import WorkedAnswer, WorkedAnswerConfig, worked_share

GOLD = "3 + 5 = 8\n8 + 2 = 10\n10"


@pytest.fixture(scope="module")
def reward() -> Iterator[WorkedAnswer]:
    made = WorkedAnswer(WorkedAnswerConfig())
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "paid", "outcome"),
    [
        ("3 + 5 = 8\n8 + 2 = 10\nAnswer: 10", 1.0, Outcome.OK),
        (" 3 + 5  = 8\n\n8 + 2 = 10 \n\nAnswer: 10", 1.0, Outcome.OK),
        ("3 + 5 = 8\n8 + 2 = 10\nAnswer: 10\nAna has 10 now.", 1.0, Outcome.OK),
        ("3 + 5 + 2 = 10\nAnswer: 10", 0.5, Outcome.OK),
        ("Answer: 10", 0.5, Outcome.OK),
        ("3 + 5 = 8\nAnswer: 8", 0.25, Outcome.WRONG),
        ("3 + 5 = 8\n8 + 2 = 11\nAnswer: 11", 0.25, Outcome.WRONG),
        ("3 + 5 = 8\n8 + 2 = 10\n10 + 2 = 12\nAnswer: 12", 0.5 * 2 / 3, Outcome.WRONG),
        ("8 + 2 = 10\n3 + 5 = 8\nAnswer: 9", 0.0, Outcome.WRONG),
        ("3 + 5 = 8\n8 + 2 = 10", 0.5, Outcome.WRONG),
        ("", 0.0, Outcome.WRONG),
    ],
)
def test_lines_are_paid_from_the_first_one_on(
    reward: WorkedAnswer, text: str, paid: float, outcome: Outcome
) -> None:
    score = reward.score(make_prompt(GOLD), make_generated(text))
    assert score.reward == pytest.approx(paid)
    assert (score.outcome, score.scorer) == (outcome, "worked_answer")


@pytest.mark.parametrize(("text", "paid"), [("8 + 2 = 10\nAnswer: 10", 1.0), ("Answer: 9", 0.0)])
def test_a_gold_without_a_working_is_an_answer(
    reward: WorkedAnswer, text: str, paid: float
) -> None:
    assert reward.score(make_prompt("10"), make_generated(text)).reward == paid


@pytest.mark.parametrize(("share", "paid"), [(0.0, 0.5), (0.8, 0.1), (1.0, 0.0)])
def test_the_answer_has_the_share_that_it_is_given(share: float, paid: float) -> None:
    reward = WorkedAnswer(WorkedAnswerConfig(answer_share=share))
    score = reward.score(make_prompt(GOLD), make_generated("3 + 5 = 8\nAnswer: 8"))
    assert score.reward == pytest.approx(paid)
    reward.close()


def test_a_gold_that_ends_in_no_answer_is_found_before_the_run(reward: WorkedAnswer) -> None:
    reward.check_gold(GOLD)
    with pytest.raises(ValueError, match=r"a gold must be a number or a LaTeX expression"):
        reward.check_gold("3 + 5 = 8\n")
    assert reward.score(make_prompt("3 + 5 = 8\n"), make_generated("Answer: 8")).reward is None


LINES = st.lists(st.sampled_from(["1 + 1 = 2", "2 + 1 = 3", "so", ""]), max_size=6)


@given(LINES.filter(any), LINES)
def test_all_is_paid_for_the_working_alone(working: list[str], given_lines: list[str]) -> None:
    working = [line for line in working if line]
    share = worked_share(working, "\n".join(given_lines))
    assert 0 <= share <= 1
    assert (share == 1) == ([line for line in given_lines if line] == working)
