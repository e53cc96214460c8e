"""Arithmetic on numbers of 100 digits that refuses what would overflow or vanish.

In a sum, a term that is far smaller than the other one would vanish unseen: `42 + 10^{-90}` would
pass for 42. Such a sum raises OutsideError, and so does a difference that leaves too few digits.

A value is a function of a point. Every operation takes values and returns one, so that an
expression is built first and evaluated later, through what `entrance` makes of the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mpmath import MPContext

Number = Any  # an mpf or mpc of mpmath, which has no types

BITS = 340
MAX_MAGNITUDE = 8_000  # binary logarithm of the largest number, and minus that of the smallest
MAX_GAP = 190  # binary logarithm of what the terms of a sum may differ by
MAX_LOSS = 130  # binary digits that a sum may be smaller than its terms
MAX_GAMMA = 1_000.0  # argument of a factorial

Point = dict[str, Number]
Value = Callable[[Point], Number]
Function = Callable[[Number], Number]


class OutsideError(Exception):
    """Not a form, or no number, that is decided here."""


# One context for all threads: some of its functions raise its precision and put it back.
context = MPContext()
context.prec = BITS
_LOCK = threading.Lock()
PI, E, TWO, IMAGINARY_UNIT = +context.pi, +context.e, context.mpf(2), context.mpc(0, 1)


def decimal(text: str) -> Number:
    """The number that digits stand for."""
    return context.mpf("0" + text)  # mpmath cannot read ".0"


def magnitude(number: Number) -> int:
    """About the binary logarithm, 0 for zero; OutsideError past the bounds and for infinity."""
    if not context.isfinite(number):
        raise OutsideError
    if number == 0:
        return 0
    bits = int(context.mag(number))
    if abs(bits) > MAX_MAGNITUDE:
        raise OutsideError
    return bits


def entrance(inside: Value) -> Value:
    """The value for callers: one evaluation at a time; whatever fails in it is OutsideError."""

    def value(point: Point) -> Number:
        with _LOCK:
            context.prec = BITS
            try:
                return inside(point)
            except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
                raise OutsideError from error

    return value


def size(inside: Value) -> int:
    """The binary digits before or behind the point of a value without letters; 0 if it has none."""
    try:
        return abs(magnitude(entrance(inside)({})))
    except OutsideError:
        return 0


def constant(number: Number) -> Value:
    """The same number at every point."""
    return lambda _: number


def added(first: Value, second: Value) -> Value:
    """Their sum, in which no term vanishes."""

    def value(point: Point) -> Number:
        left, right = first(point), second(point)
        total = _simple(left + right)
        if left != 0 and right != 0:
            sizes = magnitude(left), magnitude(right)
            if abs(sizes[0] - sizes[1]) > MAX_GAP:
                raise OutsideError
            if total != 0 and max(sizes) - magnitude(total) > MAX_LOSS:
                raise OutsideError
        return total

    return value


def negated(inside: Value) -> Value:
    """Minus the value."""
    return lambda point: -inside(point)


def multiplied(first: Value, second: Value) -> Value:
    """Their product."""
    return lambda point: _bounded(first(point) * second(point))


def divided(first: Value, second: Value) -> Value:
    """Their quotient."""

    def value(point: Point) -> Number:
        low = second(point)
        if low == 0:
            raise OutsideError
        return _bounded(first(point) / low)

    return value


def raised(base: Value, exponent: Value) -> Value:
    """A power, whose size is known before it is taken."""
    return lambda point: _power(base(point), exponent(point))


def rooted(inside: Value, index: Value) -> Value:
    """The root that is real, if there is one."""

    def value(point: Point) -> Number:
        number, degree = inside(point), index(point)
        if degree == 2:
            return _bounded(context.sqrt(number))
        if degree == 0 or not (is_real(degree) and context.isint(degree)):
            raise OutsideError
        is_odd = int(degree) % 2 == 1
        if is_odd and is_real(number) and number < 0:
            return -_power(-number, 1 / degree)
        return _power(number, 1 / degree)

    return value


def chosen(top: Value, low: Value) -> Value:
    """A binomial coefficient."""

    def value(point: Point) -> Number:
        total, part = _small(top(point)), _small(low(point))
        return _bounded(context.binomial(total, part))

    return value


def logarithm(inside: Value, base: Value | None) -> Value:
    """To a base, which is ten where none is given."""
    base = base or constant(context.mpf(10))
    return divided(applied(_log, inside), applied(_log, base))


def applied(function: Function, inside: Value) -> Value:
    """A function of one number."""
    return lambda point: _bounded(function(_bounded(inside(point))))


def absolute(number: Number) -> Number:
    """The absolute value."""
    return context.fabs(number)


def _power(base: Number, exponent: Number) -> Number:
    if base == 0:
        if is_real(exponent) and exponent > 0:
            return base
        raise OutsideError
    growth = context.fabs(context.log(base) * exponent)
    if growth > MAX_MAGNITUDE:
        raise OutsideError
    return _bounded(context.power(base, exponent))


def _log(number: Number) -> Number:
    if number == 0:
        raise OutsideError
    return context.log(number)


def _exp(number: Number) -> Number:
    return _power(E, number)


def _factorial(number: Number) -> Number:
    return context.gamma(_small(number) + 1)


def _reciprocal(function: Function) -> Function:
    return lambda number: 1 / function(number)


def _small(number: Number) -> Number:
    if context.fabs(number) > MAX_GAMMA:
        raise OutsideError
    return number


def _modest(function: Function) -> Function:
    """A periodic function, of an argument that leaves enough digits."""

    def value(number: Number) -> Number:
        if magnitude(number) > MAX_GAP // 2:
            raise OutsideError
        return function(number)

    return value


def _bounded(number: Number) -> Number:
    magnitude(number)
    return _simple(number)


def _simple(number: Number) -> Number:
    """A complex number without imaginary part as the real one that it is."""
    return number if is_real(number) or number.imag != 0 else number.real


def is_real(number: Number) -> bool:
    """Whether a value is a real number; none has an imaginary part of zero."""
    return not hasattr(number, "_mpc_")


FUNCTIONS: dict[str, Function] = {
    "\\sin": _modest(context.sin),
    "\\cos": _modest(context.cos),
    "\\tan": _modest(context.tan),
    "\\cot": _modest(_reciprocal(context.tan)),
    "\\sec": _modest(_reciprocal(context.cos)),
    "\\csc": _modest(_reciprocal(context.sin)),
    "\\arcsin": context.asin,
    "\\arccos": context.acos,
    "\\arctan": context.atan,
    "\\sinh": lambda number: (_exp(number) - _exp(-number)) / 2,
    "\\cosh": lambda number: (_exp(number) + _exp(-number)) / 2,
    "\\tanh": context.tanh,
    "\\ln": _log,
    "\\exp": _exp,
}
POSTFIXES: dict[str, Function] = {
    "!": _factorial,
    "\\degree": lambda number: number * PI / 180,
}
