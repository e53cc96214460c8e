"""Arithmetic on numbers of 130 digits that raises OutsideError if a number overflows or vanishes.

In a sum, a term far smaller than the other one would vanish unnoticed: `42 + 10^{-90}` would count
as 42. Such a sum raises OutsideError. So does a difference that leaves too few digits, and a
function whose argument is so small or large that the result equals its limit: `\\tanh(1000)` and 1.

A value is a function of a point, with an exact value beside it if it is rational. Operations take
and return values, so that an expression is built first and evaluated later, by `entrance`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from mpmath import MPContext

from tasks.rewards.maths import exact_arithmetic
from tasks.rewards.maths.exact_arithmetic import Exact

Number = Any  # an mpf or mpc of mpmath, which has no types

BITS = 440
MAX_MAGNITUDE = 8_000  # binary logarithm of the largest number, and minus that of the smallest
MAX_GAP = 190  # binary logarithm of the largest ratio between the terms of a sum
MAX_LOSS = 130  # binary digits by which a sum may be smaller than its terms
MIN_BITS = -40  # binary logarithm of a function's smallest argument, so that its square counts
MAX_TANH, MAX_ARCTAN = 4, 64  # binary logarithms of the largest arguments, short of the limits
MAX_GAMMA = 1_000.0  # largest argument of a factorial
MAX_DIGITS = 40  # of a decimal number: more digits would vanish like the term of a sum

Point = dict[str, Number]
Evaluate = Callable[[Point], Number]
Function = Callable[[Number], Number]


class Value(NamedTuple):
    """The value of a part of an expression, as a function of a point."""

    at: Evaluate  # computes the number at a point; raises OutsideError if it has none
    exact: Exact | None = None  # the exact value if it is rational


class OutsideError(Exception):
    """Raised for text outside the grammar and numbers outside the bounds: other means decide."""


# All threads share one context under a lock, as some of its functions change its precision.
context = MPContext()
context.prec = BITS
_LOCK = threading.Lock()
PI, E, IMAGINARY_UNIT = +context.pi, +context.e, context.mpc(0, 1)


def decimal(text: str) -> Value:
    """The value of a decimal number ("12.5"); above MAX_DIGITS characters only the exact one."""
    number = context.mpf("0" + text)  # mpmath cannot read ".0"
    is_long = len(text) > MAX_DIGITS

    def value(_: Point) -> Number:
        if is_long:
            raise OutsideError
        return number

    return Value(value, exact_arithmetic.decimal(text))


def letter(name: str) -> Value:
    """The value of a letter: its coordinate at the point."""
    return Value(lambda point: point[name], exact_arithmetic.letter(name))


def magnitude(number: Number) -> int:
    """The rounded binary logarithm of a number's size; 0 for zero. Raises OutsideError beyond
    MAX_MAGNITUDE and for infinity."""
    if not context.isfinite(number):
        raise OutsideError
    if number == 0:
        return 0
    bits = int(context.mag(number))
    if abs(bits) > MAX_MAGNITUDE:
        raise OutsideError
    return bits


def entrance(inside: Value) -> Evaluate:
    """Return a function that evaluates the value at a point, one call at a time over all threads.
    Any failure is raised as OutsideError."""

    def value(point: Point) -> Number:
        with _LOCK:
            context.prec = BITS
            try:
                return inside.at(point)
            except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
                raise OutsideError from error

    return value


def size(inside: Value) -> int:
    """Size of the binary logarithm of a value without letters, rounded; 0 outside the bounds."""
    try:
        return abs(magnitude(entrance(inside)({})))
    except OutsideError:
        return 0


def constant(number: Number) -> Value:
    """The value of an irrational constant."""
    return Value(lambda _: number)


def operated(operation: str, first: Value, second: Value | None = None) -> Value:
    """The value of an operation, a key of OPERATIONS, on one or two values."""
    on_numbers, on_exact = OPERATIONS[operation]

    def value(point: Point) -> Number:
        number = first.at(point)
        return on_numbers(number) if second is None else on_numbers(number, second.at(point))

    known = [part.exact for part in (first, second) if part is not None]
    return Value(value, on_exact(*known) if on_exact is not None and None not in known else None)


def _added(left: Number, right: Number) -> Number:
    """The sum of two numbers; raises OutsideError if a term would vanish."""
    total = _simple(left + right)
    if left != 0 and right != 0:
        sizes = magnitude(left), magnitude(right)
        if abs(sizes[0] - sizes[1]) > MAX_GAP:
            raise OutsideError
        if total != 0 and max(sizes) - magnitude(total) > MAX_LOSS:
            raise OutsideError
    return total


def _divided(high: Number, low: Number) -> Number:
    if low == 0:
        raise OutsideError
    return _bounded(high / low)


def _rooted(number: Number, degree: Number) -> Number:
    """The root of a number; the real one if there is one."""
    if degree == 2:
        return _bounded(context.sqrt(number))
    if degree == 0 or not (is_real(degree) and context.isint(degree)):
        raise OutsideError
    is_odd = int(degree) % 2 == 1
    if is_odd and is_real(number) and number < 0:
        return -_power(-number, 1 / degree)
    return _power(number, 1 / degree)


def _power(base: Number, exponent: Number) -> Number:
    if base == 0:
        if is_real(exponent) and exponent > 0:
            return base
        raise OutsideError
    growth = context.fabs(context.log(base) * exponent)
    if growth > MAX_MAGNITUDE or (growth != 0 and magnitude(growth) < MIN_BITS):
        raise OutsideError
    return _bounded(context.power(base, exponent))


def _log(number: Number) -> Number:
    if number == 0 or magnitude(number - 1) < MIN_BITS:
        raise OutsideError
    return context.log(number)


def _exp(number: Number) -> Number:
    return _power(E, number)


def _small(number: Number) -> Number:
    if context.fabs(number) > MAX_GAMMA:
        raise OutsideError
    return number


def _modest(function: Function, max_bits: int = MAX_GAP // 2) -> Function:
    """Restrict a function to arguments from 2^MIN_BITS to 2^max_bits, for enough digits."""

    def value(number: Number) -> Number:
        if not MIN_BITS <= magnitude(number) <= max_bits:
            raise OutsideError
        return function(number)

    return value


def _applied(function: Function) -> Function:
    """Restrict argument and result of a function to the bounds."""
    return lambda number: _bounded(function(_bounded(number)))


def _bounded(number: Number) -> Number:
    magnitude(number)
    return _simple(number)


def _simple(number: Number) -> Number:
    """Convert a complex number without imaginary part to a real one."""
    return number if is_real(number) or number.imag != 0 else number.real


def is_real(number: Number) -> bool:
    """True if a number is real; complex numbers have an imaginary part other than zero."""
    return not hasattr(number, "_mpc_")


FUNCTIONS: dict[str, Function] = {
    "\\sin": _modest(context.sin),
    "\\cos": _modest(context.cos),
    "\\tan": _modest(context.tan),
    "\\cot": _modest(lambda number: 1 / context.tan(number)),
    "\\sec": _modest(lambda number: 1 / context.cos(number)),
    "\\csc": _modest(lambda number: 1 / context.sin(number)),
    "\\arcsin": _modest(context.asin),
    "\\arccos": _modest(context.acos),
    "\\arctan": _modest(context.atan, MAX_ARCTAN),
    "\\sinh": lambda number: (_exp(number) - _exp(-number)) / 2,
    "\\cosh": lambda number: (_exp(number) + _exp(-number)) / 2,
    "\\tanh": _modest(context.tanh, MAX_TANH),
    "\\ln": _log,
    "\\exp": _exp,
}
POSTFIXES: dict[str, Function] = {
    "!": lambda number: context.gamma(_small(number) + 1),
    "\\degree": lambda number: number * PI / 180,  # in radians
}
# An operation on numbers, and on exact values if its result can be rational.
OPERATIONS: dict[str, tuple[Callable[..., Number], Callable[..., Exact | None] | None]] = {
    **{name: (_applied(each), None) for name, each in {**FUNCTIONS, **POSTFIXES}.items()},
    "+": (_added, exact_arithmetic.added),
    "negative": (lambda number: -number, exact_arithmetic.negated),
    "absolute": (_applied(context.fabs), None),
    "*": (lambda first, second: _bounded(first * second), exact_arithmetic.multiplied),
    "/": (_divided, exact_arithmetic.divided),
    "^": (_power, exact_arithmetic.raised),  # the size of the result is checked beforehand
    "!": (_applied(POSTFIXES["!"]), exact_arithmetic.factorial),
    "\\sqrt": (_rooted, None),  # of a value and the index
    "\\binom": (
        lambda top, low: _bounded(context.binomial(_small(top), _small(low))),
        exact_arithmetic.chosen,
    ),
}
