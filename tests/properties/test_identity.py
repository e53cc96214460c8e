"""Closed forms compared at secret points: the verdict of algebra or none, whatever the spelling."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from math import comb, factorial, floor, pi

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sympy import Expr, Integer, Symbol, simplify, sqrt

from tasks.rewards.maths import identity
from tasks.rewards.maths.bounded_arithmetic import BITS, context
from tasks.rewards.maths.closed_form import read_closed_form
from tasks.rewards.maths.exact_number import ComparisonRules, too_complex
from tasks.rewards.maths.notation import uniform
from tasks.rewards.maths.same_answer import same_answer

RULES = ComparisonRules(percent_is_hundredth=True, number_wants_number=False)


def same_function(gold: str, answer: str) -> bool | None:
    return identity.same_function(uniform(gold), uniform(answer))


# An expression as text and as sympy has it, built together: neither is read from the other.
Written = tuple[str, Expr]

leaves = st.one_of(
    st.integers(0, 20).map(lambda number: (str(number), Integer(number))),
    st.sampled_from([(letter, Symbol(letter)) for letter in "xyz"]),
    st.integers(2, 12).map(lambda number: (f"\\sqrt{{{number}}}", sqrt(number))),
)


def larger(parts: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda pair: (f"({pair[0][0]}) + {pair[1][0]}", pair[0][1] + pair[1][1])),
        pairs.map(lambda pair: (f"({pair[0][0]}-({pair[1][0]}))", pair[0][1] - pair[1][1])),
        pairs.map(lambda pair: (f"({pair[0][0]})\\cdot ({pair[1][0]})", pair[0][1] * pair[1][1])),
        st.tuples(parts, st.integers(1, 3)).map(
            lambda pair: (f"({pair[0][0]})^{pair[1]}", pair[0][1] ** pair[1])
        ),
        st.tuples(parts, st.integers(1, 9)).map(
            lambda pair: (f"\\frac{{{pair[0][0]}}}{{{pair[1]}}}", pair[0][1] / pair[1])
        ),
    )


expressions = st.recursive(leaves, larger, max_leaves=5)


@given(first=expressions, second=expressions)
@settings(max_examples=150, deadline=None)
def test_verdict_is_that_of_algebra(first: Written, second: Written) -> None:
    verdict = same_function(first[0], second[0])
    if verdict is not None:
        assert verdict is bool(simplify(first[1] - second[1]) == 0)


@given(expression=expressions, number=st.integers(1, 50))
@settings(max_examples=300)
def test_an_expression_equals_itself_written_otherwise_and_no_other(
    expression: Written, number: int
) -> None:
    text = expression[0]
    assert same_function(text, f"\\left( {text} \\right) + {number} - {number}") in (True, None)
    assert same_function(text, f"({text}) + {number}") in (False, None)
    assert same_function(text, text) in (True, None)
    assert same_function(text, f"\\frac{{{number}\\times({text})}}{{{number}}}") in (True, None)


# An expression of whole numbers of any size, and its value.
Whole = tuple[str, Fraction]

wholes = st.one_of(
    st.integers(0, 10**60).map(lambda number: (str(number), Fraction(number))),
    st.tuples(st.integers(2, 20), st.integers(-300, 300)).map(
        lambda pair: (f"{pair[0]}^{{{pair[1]}}}", Fraction(pair[0]) ** pair[1])
    ),
    st.integers(0, 300).map(lambda number: (f"{number}!", Fraction(factorial(number)))),
    st.tuples(st.integers(0, 300), st.integers(0, 300))
    .filter(lambda pair: pair[0] >= pair[1])
    .map(lambda pair: (f"\\binom{{{pair[0]}}}{{{pair[1]}}}", Fraction(comb(*pair)))),
    st.tuples(st.integers(0, 10**9), st.integers(1, 9)).map(
        lambda pair: (f"{pair[0]}.{pair[1]}", Fraction(10 * pair[0] + pair[1], 10))
    ),
)


def combined(parts: st.SearchStrategy[Whole]) -> st.SearchStrategy[Whole]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda pair: (f"({pair[0][0]})+{pair[1][0]}", pair[0][1] + pair[1][1])),
        pairs.map(lambda pair: (f"({pair[0][0]})-({pair[1][0]})", pair[0][1] - pair[1][1])),
        pairs.map(lambda pair: (f"({pair[0][0]})*({pair[1][0]})", pair[0][1] * pair[1][1])),
        pairs.filter(lambda pair: pair[1][1] != 0).map(
            lambda pair: (f"\\frac{{{pair[0][0]}}}{{{pair[1][0]}}}", pair[0][1] / pair[1][1])
        ),
    )


@given(st.recursive(wholes, combined, max_leaves=4), st.recursive(wholes, combined, max_leaves=4))
def test_numbers_of_any_size_are_equal_exactly_when_they_are(first: Whole, second: Whole) -> None:
    assert identity.same_function(first[0], second[0]) is (first[1] == second[1])
    assert identity.same_function(first[0], f"(({first[0]})-1)+1") is True
    assert identity.same_function(first[0], f"({first[0]})+10^{{-500}}") is False


@given(st.fractions(), st.fractions())
def test_fractions_are_equal_exactly_when_they_are(first: Fraction, second: Fraction) -> None:
    for wanted, given_ in ((first, first), (first, second)):
        gold, answer = (
            f"{'-' if one < 0 else ''}\\frac{{{abs(one.numerator)}}}{{{one.denominator}}}x"
            for one in (wanted, given_)
        )
        assert same_function(gold, answer) is (wanted == given_)


PIECES = r"""
\sin \frac { } ( ) [ ] | ^ _ 1 2 10 x y e i ! \sqrt \binom \log_2 \ln \exp \tan \pi + - * / , ;
= < \le \in \cup \pm \text{ cm apples or \begin{pmatrix} \end{pmatrix} & \\ \{ \} \infty
\emptyset % ^\circ \pmod : ' 999 0.5 . ½ √ \$
"""
pieces = st.sampled_from(PIECES.split())


@given(st.lists(pieces, max_size=40).map("".join), st.lists(pieces, max_size=40).map(" ".join))
@settings(max_examples=500, deadline=None)
def test_nothing_raises(gold: str, answer: str) -> None:
    for text in (gold, answer):
        if not too_complex(text):
            assert same_answer(text, text, RULES) in (True, False, None)
    if not (too_complex(gold) or too_complex(answer)):
        assert same_answer(gold, answer, RULES) in (True, False, None)


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", True),
        (r"1+\sqrt{2}", r"1-\sqrt{2}", False),
        (r"\sqrt{6}", r"\sqrt{2}\sqrt{3}", True),
        (r"\frac{\pi}{4}", r"0.25\pi", True),
        ("-x^2", "(-x)^2", False),
        ("x^{-1}", r"\frac{1}{x}", True),
        ("3x/2", r"\frac{3}{2}x", True),
        (r"\frac{x^2-1}{x-1}", "x+1", True),
        (r"\frac{x}{3}", "0.333x", False),
        ("x(y+1)", "xy+x", True),
        ("2x", "2y", False),
        ("5", "5x", False),
        ("5c", "5c", True),
        ("x^10", "x^{10}", True),
        ("1/2x", "x/2", None),
        ("x(y)", "xy", True),
        ("2(3)", "6", True),
        (r"1\frac{1}{2}", r"\frac{3}{2}", True),
        ("2 3", "6", None),
        (r"\frac{1}{x-x}", r"\frac{2}{x-x}", None),
        (r"\sin 2x", r"2\sin x\cos x", True),
        (r"\sin x/2", r"\frac{\sin x}{2}", None),
        (r"\ln x^2", r"2\ln x", True),
        (r"\sqrt{x^2}", "x", False),
        (r"\sqrt{x^2}", "|x|", True),
        ("|x-5|", "5-x", False),
        ("|x-1000|", "1000-x", False),
        ("x+1", "x+1+(11x-13)(17x-29)", False),
        (r"\sqrt{2}", rf"{2**127 - 2721}+\sqrt{{2}}", False),
        ("2^{-300}", "2^{-301}", False),
        ("e", "e+10^{-90}", None),  # a term that would vanish
        ("x", r"x+e^{-300}", None),
        ("f(x)", "f(x)+1", None),
        ("2^{10^{10}}", "3", False),
        (r"\exp(10^9)", "3", None),
        ("(10^8)!", "3", None),
        (r"\binom{10^7}{10^6}", "3", None),
        ("(1,2)", "(1,2)", None),
        ("(" * 30 + "x" + ")" * 30, "x", None),
    ],
)
def test_form_has_its_verdict(gold: str, answer: str, verdict: bool | None) -> None:
    assert same_function(gold, answer) is verdict


def test_verdicts_do_not_depend_on_the_points_that_are_drawn() -> None:
    pairs = [
        ("(x-y)^2", "x^2-2xy+y^2"),
        ("|x-y|", "x-y"),
        (r"\sqrt{x}", "x"),
        (r"\ln x^2", r"2\ln x"),
        ("x+y", "x-y"),
        ("x", r"\arcsin(\sin x)"),
        ("x", r"\arctan(\tan x)"),
        (r"\arcsin(\sin(x/2))", r"\frac{x}{2}"),
        (r"\arcsin(\sin x)", r"\arctan(\tan x)"),
        (r"|x|", r"\arccos(\cos x)"),
        ("|x+10^6|", "x+10^6"),
        ("|x-z|", "x-z"),
        ("|x-z|", "z-x"),
        ("|0.001x-10^6|", "10^6-0.001x"),
        (r"|\sqrt{x}-1000|", r"1000-\sqrt{x}"),
    ]
    verdicts = []
    for _ in range(20):
        identity._coordinate.cache_clear()
        verdicts.append([same_function(gold, answer) for gold, answer in pairs])
    assert verdicts == [[True, False, False, True, *[False] * 11]] * 20


def test_no_point_is_drawn_around_a_simple_number_or_multiple_of_pi() -> None:
    for starts in identity._windows(0):
        for place, start in ((place, abs(starts[place % 2])) for place in range(4)):
            low = start + place * identity.STEP
            for unit in (pi / 12, *(1 / number for number in range(1, 9))):
                assert (floor(low / unit) + 1) * unit > low + identity.WIDTH, (start, place, unit)


@given(st.integers(-9, 9).filter(bool), st.integers(1, 9))
def test_multiple_of_an_equation_is_the_same_one(factor: int, constant: int) -> None:
    gold = (f"x^2+{constant}", "0")
    multiple = (f"{factor}x^2", f"{-factor * constant}")
    assert identity.same_equation(gold, multiple, signed=False) is True
    assert identity.same_equation(gold, (f"x^2+{constant + 1}", "0"), signed=False) is False
    assert identity.same_equation(gold, multiple, signed=True) is (factor > 0)


OPERATORS = (
    r"({0})+({1})", r"({0})-({1})", r"({0})\cdot({1})", r"\frac{{{0}}}{{{1}}}", r"({0})^{{{1}}}",
    r"\sqrt[{0}]{{{1}}}", r"\sqrt{{{0}}}", r"\binom{{{0}}}{{{1}}}", r"({0})!", r"|{0}|",
    r"({0})^\circ", r"\log_{{{0}}}({1})", r"\ln({0})", r"\exp({0})",
    *(rf"\{name}({{0}})" for name in ("sin", "cot", "arcsin", "arctan", "sinh", "tanh")),
)  # fmt: skip
imaginary = st.recursive(
    st.sampled_from(["i", "0i", "3+0i", "2", "0", "-1", "x", "1.5"]),
    lambda parts: st.builds(str.format, st.sampled_from(OPERATORS), parts, parts),
    max_leaves=4,
)


@given(answer=imaginary)
@example(r"\sqrt[3+0i]{8}")
@example(r"\sqrt[i]{8}")
@example(r"\binom{3i}{i}")
@settings(max_examples=400, deadline=None)
def test_imaginary_unit_in_any_operation_raises_nothing(answer: str) -> None:
    for gold in ("8", "x+1", "2+3i"):
        assert same_answer(gold, answer, RULES) in (True, False, None)
        same_answer(gold, f"{gold}={answer}", RULES)


def test_threads_leave_the_precision_as_it_is() -> None:
    form = read_closed_form(r"\binom{x}{7}")
    assert form is not None
    points = [{"x": context.mpf(20.5 + place / 2)} for place in range(1500)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(form.value, points))
    finally:
        sys.setswitchinterval(interval_s)
    assert context.prec == BITS
