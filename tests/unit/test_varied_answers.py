"""The benchmark's answers: the same for a seed, every hostile row among them, and judged right by
the reward as a run uses it."""

from __future__ import annotations

import pytest

from research.benchmarks.reward_throughput import judge
from research.benchmarks.varied_answers import HOSTILE, KINDS, varied_answers
from tasks.rewards.maths.equivalence import TwoStageReader, compare, latex2sympy2
from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig

NOT_OF_A_MODEL = {30, 32}  # a finish reason, and a gold


def test_answers_are_those_of_the_seed_in_all_kinds() -> None:
    first = list(varied_answers(1, 2_000))
    assert first == list(varied_answers(1, 2_000))
    assert first != list(varied_answers(2, 2_000))
    assert {answer.kind for answer in first} == {name for name, _, _ in KINDS} | {"endless"}
    assert 0.3 < sum(answer.is_right for answer in first) / len(first) < 0.7
    assert sum(share for _, share, _ in KINDS) == 100


def test_every_row_of_the_table_is_among_them() -> None:
    assert {int(row[1:]) for row, *_ in HOSTILE} == set(range(1, 33)) - NOT_OF_A_MODEL
    texts = {answer.text for answer in varied_answers(0, 100)}
    assert all(text in texts for _, _, text, _ in HOSTILE)


def test_every_verdict_is_right() -> None:
    reward = MathAnswer(MathAnswerConfig(timeout_s=20.0))
    judged = [
        judge(reward, answer) for answer in varied_answers(5, 200) if answer.kind != "endless"
    ]
    reward.close()
    assert [one.answer for one in judged if one.is_mistaken or one.is_crash] == []
    assert reward.num_verified >= 3


@pytest.mark.parametrize(
    "latex",
    [
        "x+1",
        r"\{1,2\}",
        "[1,2)",
        r"(-\infty,3]\cup[5,7)",
        "1<x<2",
        "y=2x+1",
        "f(x)",
        r"\log_2 8",
        "x=1,y=2",
        "2i+3",
        "1/2x",
        "a=b=c",
        "2x +",
    ],
)
def test_short_look_ahead_reads_what_the_full_one_reads(latex: str) -> None:
    def read(reader: type) -> object:
        try:
            return reader(is_real=True).parse(latex)
        except Exception:  # the library's own, for what cannot be read
            return None

    assert read(TwoStageReader) == read(TwoStageReader.__mro__[1])
    assert latex2sympy2._Latex2Sympy is TwoStageReader


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        (r"\sin(2x)", r"2\sin(x)\cos(x)", "equal"),
        (r"\sin(2x)", r"\sin(2x)+1", "different"),
        ("y=2x+1", "y=1+2x", "equal"),
        ("y=2x+1", "y=2x-1", "different"),
        (r"\frac{1}{3}", "0.333333", "equal"),
        (r"9\%", "9", "equal"),
        ("2^{-30}", "0.0", "different"),
        (r"6.63 \times 10^{-34}", "0.0", "different"),
        ("e^{-50}", "e^{-60}", "different"),
        ("x^2+1=0", "x^2+4=0", "different"),
        *((f"2+5{letter}", "2+5", "different") for letter in "cdghlmost"),
        ("e", "E", "equal"),
        ("@@@", "1", "bad_gold"),
        (r"\int_0^1 x^2 dx", r"\frac{1}{3}", "equal"),
        (r"\int_0^1 x^2 dx", r"\frac{1}{3} + 10^{-12}", "different"),
        (r"10^{-20} \int_0^1 x^2 dx", "0", "different"),
        (r"\int_0^1 e^{x^2} dx + 1/2023!", r"\int_0^1 e^{x^2} dx + 1/2024!", "different"),
        ("1-1/2023!", "1-1/2024!", "different"),
        ("f(1-1/2023!)", "f(1-1/2024!)", "different"),
    ],
)
def test_difference_at_a_point_does_not_change_a_verdict(
    gold: str, answer: str, verdict: str
) -> None:
    assert compare(gold, answer) == verdict
