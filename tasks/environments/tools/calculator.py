"""A calculator for what a model writes: exact, bounded, and without `eval`.

    text -> its signs as Python's -> only digits and signs? -> syntax tree -> fractions -> text

Every operation's result is bounded before it is taken: no text takes longer than a millisecond.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

MAX_CHARS = 200  # of an expression
MAX_BITS = 200  # of a numerator or a denominator: 60 digits
MAX_DECIMALS = 6  # of a result that has more of them
SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})
TIMES = re.compile(r"(?<=[0-9)])\s*[xX]\s*(?=[0-9(])")
THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
READABLE = re.compile(r"[-+*/%().0-9 \t]+")
UNREADABLE = "That is no expression."
TOO_LONG = "That is too long."
TOO_LARGE = "That is too large."
NO_DIVISION = "Nothing can be divided by 0."


class CannotCompute(Exception):
    """Raised for an expression without a value; the message is a short sentence for the model."""


class Result(NamedTuple):
    """The value of an expression, and its number of operations."""

    value: Fraction  # exact
    num_operations: int  # with two operands


def calculate(text: str) -> Result:
    """Compute an expression. Raises CannotCompute."""
    if len(text) > MAX_CHARS:
        raise CannotCompute(TOO_LONG)
    spelled = TIMES.sub("*", THOUSANDS.sub("", text.translate(SIGNS))).strip()
    if not READABLE.fullmatch(spelled):
        raise CannotCompute(UNREADABLE)
    try:
        tree = ast.parse(spelled, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CannotCompute(UNREADABLE) from None
    num_operations = sum(isinstance(node, ast.BinOp) for node in ast.walk(tree))
    return Result(value=_value(tree.body, spelled), num_operations=num_operations)


def written(value: Fraction) -> str:
    """Returns a number as the calculator shows it: whole, or with at most six decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    rounded = round(abs(value) * 10**MAX_DECIMALS)
    whole, decimals = divmod(rounded, 10**MAX_DECIMALS)
    shown = f"{whole}.{decimals:0{MAX_DECIMALS}d}".rstrip("0").removesuffix(".")
    return f"-{shown}" if value < 0 and rounded else shown


def _value(node: ast.expr, spelled: str) -> Fraction:
    """The value of a node. Numbers are read as they are spelled: a float has fewer digits."""
    match node:
        case ast.Constant(value=int() | float()):
            return _bounded(Fraction(spelled[node.col_offset : node.end_col_offset]))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, spelled)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, spelled)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATIONS:
            operate = OPERATIONS[type(sign)]
            try:
                return _bounded(operate(_value(left, spelled), _value(right, spelled)))
            except ZeroDivisionError:
                raise CannotCompute(NO_DIVISION) from None
    raise CannotCompute(UNREADABLE)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise CannotCompute(UNREADABLE)
    if (_bits(base) - 1) * abs(exponent.numerator) > MAX_BITS:  # none of 0, 1 and -1
        raise CannotCompute(TOO_LARGE)
    return Fraction(base**exponent)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise CannotCompute(TOO_LARGE)
    return value


OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: lambda left, right: left % right,
    ast.Pow: _power,
}
