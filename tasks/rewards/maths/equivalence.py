"""Compares two mathematical expressions with math-verify. Runs inside a verify worker only.

    gold, once --parse--> values far apart? --no--> math-verify: equal or different
                                        \--yes--> different

math-verify may hang and may allocate memory without bound, so never call this module in a process
that must survive. Its own time limits (SIGALRM, whole seconds) are off.
"""

from __future__ import annotations

import re
from functools import lru_cache

from antlr4 import PredictionMode
from antlr4.Parser import Parser
from latex2sympy2_extended import NormalizationConfig, latex2sympy2
from math_verify import ExprExtractionConfig, LatexExtractionConfig, grader, parse, verify
from sympy import (
    Basic,
    Derivative,
    Eq,
    Expr,
    Float,
    MatrixBase,
    Pow,
    Rational,
    Symbol,
    UnevaluatedExpr,
    binomial,
    factorial,
    gamma,
)
from sympy.core.function import AppliedUndef

# math-verify returns sympy objects and strings of many types, all untyped: hence list[object].

# points at which two functions are compared: positive, no special values
POINTS = Rational(13, 11), Rational(29, 17)
FAR = 1e-5  # relative; math-verify calls values equal that agree to six places
DIGITS = 20
SAME_DIGITS = 40  # digits in which two equal numbers must agree
VAST = 10**15  # next to a number of this size, or its reciprocal, a term of a sum may vanish
VAST_POWER = 40
_PRIME = re.compile(r"\^\s*(?:\{\s*(?:\\prime\s*)+\}|\\prime(?![a-zA-Z]))")
_PRIMED = re.compile(r"([A-Za-z])(?:_(?:\{([^{}]*)\}|([A-Za-z0-9])))?\s*('+)")
_DIVISOR = re.compile(
    r"\\(?:(?:operatorname|text|mathrm)\s*\{\s*)?(gcd|lcm)(?![a-zA-Z])\s*\}?"
    r"\s*(?:\\left\s*)?\(([^()]*?)(?:\\right\s*)?\)"
)
READING = (
    LatexExtractionConfig(
        normalization_config=NormalizationConfig(
            basic_latex=True,
            units=False,  # would drop single letters after numbers: 2 + 5t would be 2 + 5
            malformed_operators=True,
            nits=True,
            boxed="all",
            equations=False,
        )
    ),
    ExprExtractionConfig(),
)


class TwoStageReader(latex2sympy2._Latex2Sympy):  # type: ignore[misc]  # untyped
    """Parses LaTeX with ANTLR's short look-ahead (SLL), and only if that fails with the full one
    (LL), which is not cached and takes 20 ms for an interval. By ANTLR's contract the short one
    gives the same tree or an error."""

    _mode = PredictionMode.SLL

    def create_parser(self, latex_str: str) -> Parser:
        """Create the parser of a text, in the mode of the present stage."""
        parser: Parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self._mode
        return parser

    def parse(self, latex_str: str) -> object:
        """Parse a text to a sympy object. Raises an exception if the text cannot be read."""
        try:
            return super().parse(latex_str)
        except Exception:  # the library raises Exception itself
            self._mode = PredictionMode.LL
            return super().parse(latex_str)


latex2sympy2._Latex2Sympy = TwoStageReader
# math-verify compares equations by their real solutions: all without any would be equal.
grader.sympy_solve_and_compare = lambda *_: False
by_digits = grader.sympy_numeric_eq


def same_number(wanted: object, given: object, *rounding: int) -> bool:
    """True if two numbers are equal: rational ones exactly, others to forty digits relative to
    their size. False if a term of a number may be so large or small that another one vanishes.

    Replaces math-verify's comparison, which rounds to 15 digits and takes smaller numbers for zero.
    """
    for side in (wanted, given):
        is_percent = isinstance(side, Expr) and side.has(UnevaluatedExpr)
        if is_percent or isinstance(side, MatrixBase):  # for whose entries it calls this
            return bool(by_digits(wanted, given, *rounding))
    first, second = (grader.safe_sympy_doit(side) for side in (wanted, given))
    if isinstance(first, Rational) and isinstance(second, Rational):
        return bool(first == second)
    if not isinstance(first, Expr) or not isinstance(second, Expr) or _may_vanish(first, second):
        return False
    if first.free_symbols | second.free_symbols:
        return False  # left to algebra
    if any(side.has(Float) for side in (first, second)):
        return bool(by_digits(first, second, *rounding)) and not differ_in_value(first, second)
    values = [side.evalf(SAME_DIGITS + 10) for side in (first, second)]
    if not all(value.is_number and value.is_comparable for value in values):
        return False
    gap = abs(values[0] - values[1])
    return bool(gap <= Rational(1, 10**SAME_DIGITS) * max(map(abs, values)))


def _may_vanish(*sides: Expr) -> bool:
    """True if a side has factorials, large powers or numbers, next to which terms may vanish."""
    for side in sides:
        numbers = side.atoms(Rational)
        powers = (power.exp for power in side.atoms(Pow) if power.exp.is_number)
        if (
            side.has(factorial, gamma, binomial)
            or any(max(abs(number.p), number.q) > VAST for number in numbers)
            or any(abs(exponent) > VAST_POWER for exponent in powers)
        ):
            return True
    return False


grader.sympy_numeric_eq = same_number


@lru_cache(maxsize=4096)
def compare(gold: str, answer: str) -> str:
    """Compare gold and answer: "equal", "different", or "bad_gold" if that is no expression."""
    wanted = parse_gold(gold)
    if not wanted:
        return "bad_gold"
    given = _parsed(f"\\boxed{{{answer}}}")
    if given and differ_in_value(wanted[0], given[0]):
        return "different"
    return "equal" if verify(list(wanted), given, timeout_seconds=None) else "different"


@lru_cache(maxsize=4096)
def parse_gold(gold: str) -> tuple[object, ...]:
    """math-verify's readings of a gold; empty if it finds no expression."""
    readings = tuple(_parsed(f"${gold}$"))
    return () if all(isinstance(reading, str) for reading in readings) else readings


def _parsed(text: str) -> list[object]:
    """math-verify's readings of a text. Primes, gcd and lcm of letters, and derivatives of letters
    are replaced by letters of their own: math-verify would drop primes, and sympy would simplify
    the others to 1, a product and 0."""

    def subscripted(match: re.Match[str]) -> str:
        """Replace `y_1''` by a letter of its own, with the primes in its subscript."""
        return f"{match[1]}_{{{match[2] or match[3] or ''}prime{len(match[4])}}}"

    def divisor(match: re.Match[str]) -> str:
        """Replace `\\gcd(b, a)` by an unknown function with its arguments in alphabetical order."""
        if not re.search("[A-Za-z]", match[2]):
            return match[0]
        arguments = ",".join(sorted(part.strip() for part in match[2].split(",")))
        return rf"\text{{{match[1]}}}({arguments})"

    def vanishes(part: Basic) -> bool:
        """True for derivatives that sympy simplifies to 0."""
        return isinstance(part, Derivative) and not part.expr.free_symbols & set(part.variables)

    primed = _PRIME.sub(lambda match: "'" * match[0].count("prime"), text)
    distinct = _DIVISOR.sub(divisor, _PRIMED.sub(subscripted, primed))
    return [
        reading.replace(vanishes, lambda part: Symbol(str(part)))
        if isinstance(reading, Basic)
        else reading
        for reading in parse(distinct, READING, parsing_timeout=None)
    ]


def differ_in_value(wanted: object, given: object) -> bool:
    """True if two expressions in the same letters have values far apart at one point, which proves
    that they differ and saves math-verify's search.

    For equations with the same single letter on the left, compares the right sides. False for
    expressions that math-verify compares generously: single letters, percent, unknown functions.
    """
    if isinstance(wanted, Eq) and isinstance(given, Eq):
        name = wanted.lhs
        if (
            not isinstance(name, Symbol)
            or name != given.lhs
            or name in wanted.rhs.free_symbols | given.rhs.free_symbols
        ):
            return False
        wanted, given = wanted.rhs, given.rhs
    if (
        not (isinstance(wanted, Expr) and isinstance(given, Expr))
        or wanted.free_symbols != given.free_symbols
    ):
        return False
    for side in (wanted, given):
        if isinstance(side, Symbol) or side.has(UnevaluatedExpr, AppliedUndef):
            return False
    letters = sorted(wanted.free_symbols, key=str)
    values = {letter: POINTS[place % len(POINTS)] + place for place, letter in enumerate(letters)}
    try:
        first, second = (
            complex(side.doit().subs(values).evalf(DIGITS)) for side in (wanted, given)
        )
    except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        return False
    return abs(first - second) > FAR * max(abs(first), abs(second))  # never true of nan
