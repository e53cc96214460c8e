"""Properties of the mathematics reward: exactness against Fraction, agreement with the tiny-mix
rule, and no exception ever."""

from __future__ import annotations

import re
import time
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.records import Outcome
from tasks.rewards.maths.exact_number import exact_number, too_complex
from tasks.rewards.maths.final_answer import (
    answer_tail,
    find_answer,
    last_boxed,
    visible_text,
)
from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig

REWARD = MathAnswer(MathAnswerConfig())  # numbers against numbers never start its worker

integers = st.integers(min_value=-(10**12), max_value=10**12)
denominators = st.integers(min_value=1, max_value=10**6)


@st.composite
def written_numbers(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A number as text, and its value."""
    top, bottom = draw(integers), draw(denominators)
    style = draw(st.sampled_from(["integer", "commas", "decimal", "slash", "frac", "padded"]))
    if style in ("slash", "frac"):
        sign, size = "-" if top < 0 else "", abs(top)
        text = f"{top}/{bottom}" if style == "slash" else f"{sign}\\frac{{{size}}}{{{bottom}}}"
        return text, Fraction(top, bottom)
    if style == "decimal":
        places = draw(st.integers(min_value=0, max_value=6))
        digits = str(abs(top)).zfill(places + 1)
        whole, part = digits[: len(digits) - places], digits[len(digits) - places :]
        return f"{'-' if top < 0 else ''}{whole}{'.' + part if part else ''}", Fraction(
            top, 10**places
        )
    text = {
        "integer": f"{top}",
        "commas": f"{top:,}",
        "padded": f"{'-' if top < 0 else '+'}00{abs(top)}",
    }[style]
    return text, Fraction(top)


@given(gold=written_numbers(), answer=written_numbers(), same=st.booleans(), boxed=st.booleans())
@settings(max_examples=1000)
def test_numbers_are_equal_exactly_when_their_fractions_are(
    gold: tuple[str, Fraction], answer: tuple[str, Fraction], same: bool, boxed: bool
) -> None:
    text, value = gold if same else answer
    verdict = REWARD.judge(gold[0], f"So \\boxed{{{text}}}." if boxed else f"So\nAnswer: {text}")
    assert verdict.outcome is (Outcome.OK if value == gold[1] else Outcome.WRONG)
    assert REWARD._worker.pid is None


@given(written_numbers())
def test_written_number_is_read_exactly(number: tuple[str, Fraction]) -> None:
    read = exact_number(number[0])
    assert read is not None
    assert read.value == number[1]


PLAIN_ENDS = ("", ".", " pens", " pens.", "**", "$", ", I think", "?", ")", ". So 9 it is.")


def tiny_mix_rule(gold: int, text: str) -> bool:
    matches = re.findall(r"answer\W{0,6}\s*(-?\d+)", text, re.IGNORECASE)
    return bool(matches) and int(matches[-1]) == gold


def ends_plainly(text: str) -> bool:
    """Whether the last number after "answer" is all that its line states."""
    ends = re.findall(r"answer\W{0,6}\s*-?\d+([^\n]*)", text, re.IGNORECASE)
    return not ends or ends[-1] in PLAIN_ENDS


small = st.integers(min_value=0, max_value=120)
work_lines = st.one_of(
    st.builds(lambda a, b, c: f"{a} + {b} = {c}", small, small, small),
    st.sampled_from(
        [
            "b-o-o-k",
            "s-u-n",
            "a-_-s-m-a-l-l",
            "4 pens",
            "the answer comes",
            "",
            "Answer",
            "Ana has pens.",
        ]
    ),
)
answer_lines = st.builds(
    lambda word, separator, number, rest: f"{word}{separator}{number}{rest}",
    st.sampled_from(["Answer", "answer", "ANSWER", "The final answer", "**Answer"]),
    st.sampled_from([": ", ":", " ", ":\n", ": **", " = ", ": $", ":** "]),
    small,
    st.sampled_from([*PLAIN_ENDS, " + 3 = 7", " or 9", "!", " is it."]),
)


@given(
    gold=small,
    lines=st.lists(st.one_of(work_lines, answer_lines), max_size=8),
    last=st.one_of(st.none(), small),
)
@settings(max_examples=1000)
def test_tiny_mix_answers_are_judged_by_the_tiny_mix_rule(
    gold: int, lines: list[str], last: int | None
) -> None:
    text = "\n".join([*lines, *([f"Answer: {last}"] if last is not None else [])])
    is_paid = REWARD.judge(str(gold), text).reward == 1.0
    if ends_plainly(text):
        assert is_paid == tiny_mix_rule(gold, text)
    else:  # a line of more than the number is read as a whole: 4 + 3 = 7 is 7
        assert not is_paid or text.rstrip(".").endswith(f"= {gold}") or f"= {gold}\n" in text


hostile = st.text(
    alphabet=st.one_of(
        st.sampled_from(list("\\{}$^*().,%/-+ \n0123456789eExXanswer:boxed<|>")), st.characters()
    ),
    max_size=400,
) | st.lists(
    st.sampled_from(
        [
            "\\boxed{",
            "{",
            "}",
            "\\frac",
            "Answer: ",
            "42",
            "^",
            "**",
            "\n",
            "\\{",
            "<|im_end|>",
            "½",
        ]
    )
).map("".join)


@given(hostile)
@settings(max_examples=500)
def test_number_question_never_raises_and_never_pays_without_the_digits(text: str) -> None:
    tail = answer_tail(text)
    if found := find_answer(tail):
        assert found.text in tail
        assert found.bare in found.text
        too_complex(found.text)
    if not ("\\boxed" in tail and "}" in tail):  # lines are judged without the worker
        verdict = REWARD.judge("987654", text)
        assert verdict.reward == 0.0 or "987" in tail


@given(hostile)
@settings(max_examples=300)
def test_visible_text_is_a_prefix_and_holds_no_marker(text: str) -> None:
    seen = visible_text(text + "<|im_start|>user\nAnswer: 1")
    assert text.startswith(seen)
    assert "<|im_" not in seen


@given(st.lists(st.sampled_from(["{", "}", "x", "\\boxed{", "\\}", "1"]), max_size=40).map("".join))
def test_boxed_content_is_balanced(text: str) -> None:
    found = last_boxed(text)
    if found is not None and found.boxed:
        bare = re.sub(r"\\[{}]", "", found.text)
        assert bare.count("{") == bare.count("}")


def test_thousand_fast_answers_take_well_under_a_second() -> None:
    texts = [f"{i} + {i} = {2 * i}\nAnswer: {2 * i}" for i in range(1000)]
    started_s = time.monotonic()
    assert all(REWARD.judge(str(2 * i), text).outcome is Outcome.OK for i, text in enumerate(texts))
    assert time.monotonic() - started_s < 5.0
