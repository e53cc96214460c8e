"""Closed forms compared modulo a prime: the verdict of exact polynomials, whatever way they are written, or none."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Integer, Symbol, isprime, simplify, sqrt

from tasks.rewards.identity import LETTERS, PRIMES, same_function

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
        st.tuples(parts, st.integers(1, 3)).map(lambda pair: (f"({pair[0][0]})^{pair[1]}", pair[0][1] ** pair[1])),
        st.tuples(parts, st.integers(1, 9)).map(lambda pair: (f"\\frac{{{pair[0][0]}}}{{{pair[1]}}}", pair[0][1] / pair[1])),
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
def test_an_expression_equals_itself_written_otherwise_and_no_other(expression: Written, number: int) -> None:
    text = expression[0]
    assert same_function(text, f"\\left( {text} \\right) + {number} - {number}") in (True, None)
    assert same_function(text, f"({text}) + {number}") in (False, None)
    assert same_function(text, text) in (True, None)
    assert same_function(text, f"\\frac{{{number}\\times({text})}}{{{number}}}") in (True, None)


@given(st.fractions(), st.fractions())
def test_fractions_are_equal_exactly_when_they_are(first: Fraction, second: Fraction) -> None:
    for wanted, given_ in ((first, first), (first, second)):
        gold, answer = (f"{'-' if one < 0 else ''}\\frac{{{abs(one.numerator)}}}{{{one.denominator}}}x" for one in (wanted, given_))
        assert same_function(gold, answer) is (wanted == given_)


@given(st.text(alphabet="0123456789xyab+-*/^(){}\\ .fracsqtpileghdo", max_size=60), st.text(max_size=20))
@settings(max_examples=500)
def test_nothing_raises(gold: str, answer: str) -> None:
    assert same_function(gold, answer) in (True, False, None)
    assert same_function(gold, gold) in (True, None)


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
        (r"\frac{x}{3}", "0.333x", None),  # it may be rounded
        ("x(y+1)", "xy+x", True),
        ("2x", "2y", None),
        ("5", "5x", None),
        ("5c", "5c", None),  # a unit
        ("x^10", "x^{10}", None),
        ("1/2x", "x/2", None),
        ("x(y)", "xy", None),
        ("2(3)", "6", None),
        (r"1\frac{1}{2}", r"\frac{3}{2}", None),
        ("2 3", "6", None),
        (r"\frac{1}{x-x}", r"\frac{1}{x-x}", None),
        (r"\sin x", r"\sin x", None),
        ("(1,2)", "(1,2)", None),
        ("(" * 20 + "x" + ")" * 20, "x", None),
    ],
)
def test_form_has_its_verdict(gold: str, answer: str, verdict: bool | None) -> None:
    assert same_function(gold, answer) is verdict


def test_primes_are_safe_primes_that_give_roots_in_one_step() -> None:
    for prime in PRIMES:
        assert isprime(prime)
        assert isprime((prime - 1) // 2)
        assert prime % 4 == 3


def test_letters_are_those_of_no_unit() -> None:
    assert not set(LETTERS) & set("cdefghilmost")
