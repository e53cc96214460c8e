r"""Reads relations: `x = 5` is the value 5 named x, `1 \le x < 2` the interval [1,2) named x.

    sides and signs -> a named value, an interval, an equation or inequality, or "false"

If all sides are equal, the last one is the answer: `6 \cdot 7 = 42` is 42. If sides without letters
differ, the relation is false: `41 = 42`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from tasks.rewards.maths.closed_form import GREEK, read_closed_form
from tasks.rewards.maths.form import (
    INFINITY,
    Form,
    all_but,
    as_interval,
    has_letters,
    interval,
    scalar,
    tight,
)
from tasks.rewards.maths.identity import same_function
from tasks.rewards.maths.notation import split_at
from tasks.rewards.maths.units import changes_amount

Read = Callable[[str], Form]

LETTER = rf"(?:[A-Za-z]|{GREEK.pattern}(?![a-zA-Z]))(?:_(?:\{{[^{{}}]*\}}|[A-Za-z0-9]))?"
SIGN = re.compile(r"=|<|>|\\(?:le|ge|ne|in|approx|equiv)(?![a-zA-Z])")

# Sides of an equation that only name the value on the other side, one pattern per line.
_NAMES = (
    rf"{LETTER}'*(?:\^\{{-1\}})?(?:\([^()=]*\))?",  # x, a_7, f(2), f^{-1}(x)
    r"[a-zA-Z](?:\+[a-zA-Z])+",  # m+n
    r"[A-Z]{2,4}",  # AB
    r"(?:m?\\angle|\\triangle)\s*[A-Z]{1,4}",
    r"\|[A-Z]{2}\||\[[A-Z]{3,4}\]",  # the length of AB, the area of ABC
    r"\\(?:overline|vec|hat|bar|overrightarrow)\s*\{[A-Za-z]+\}",
    r"\\text\s*\{[A-Za-z ]+\}|[A-Za-z]{4,}",
    rf"\({LETTER}(?:,{LETTER})+\)",  # (x,y)
    r"\\frac\{d[a-z]\}\{d[a-z]\}",
)
_NAME = re.compile("|".join(_NAMES))
_VARIABLE = re.compile(LETTER)
_NO_NAMES = ("\\pi", INFINITY, "i")
_FLIPPED = {">": "<", r"\ge": r"\le"}
_CONGRUENCE = re.compile(
    r"(?P<value>.*?)[(,\s]*\\mod(?![a-zA-Z])\s*"
    r"\{?\s*(?P<modulus>[^{}()]+?)\s*\}?\s*\)?\s*"
)


def read_congruence(text: str, read: Read) -> Form | None:
    r"""Read a congruence, such as `x \equiv 3 \pmod 5`; None if the text is none."""
    match = _CONGRUENCE.fullmatch(text)
    if match is None:
        return None
    sides, signs = split_at(SIGN, match["value"])
    name = sides[0] if len(sides) == 2 and signs == [r"\equiv"] else ""
    return Form(kind="congruence", parts=(read(sides[-1]), read(match["modulus"])), name=name)


def read_relation(text: str, read: Read) -> Form | None:
    """Read a text with comparison signs outside brackets; None if it has none."""
    sides, signs = split_at(SIGN, text)
    if not signs or not sides[-1]:
        return None
    if not sides[0] and len(sides) == 2 and signs[0] != r"\approx":  # = 5, < 5; \ne 5 is false
        if signs[0] == "=":
            return read(sides[1])
        if signs[0] not in ("<", ">", r"\le", r"\ge"):
            return Form(kind="false")
        return replace(_ordering(*_upwards(["x", sides[1]], signs), read), name="")
    first, last = sides[0], sides[-1]
    if signs[0] == r"\approx" and (not first or _is_name(first, last) or _is_name(last, first)):
        return Form(kind="approximate", parts=(read(last),), name=tight(first))
    if not all(sides):
        return None
    if all(sign in ("=", r"\approx") for sign in signs):
        if r"\approx" in signs:  # without the decimals that \sqrt{2} \approx 1.414 adds
            sides = sides[: signs.index(r"\approx") + 1]
        return _equality(sides, read)
    sides, signs = _upwards(sides, signs)
    if set(signs) <= {"<", r"\le"}:
        return _ordering(sides, signs, read)
    if signs == [r"\in"] and _NAME.fullmatch(tight(sides[0])):
        return replace(as_interval(read(sides[1])), name=tight(sides[0]))
    if signs != [r"\ne"]:
        return None
    variable, value = sides if has_letters(sides[0]) else sides[::-1]
    if _VARIABLE.fullmatch(tight(variable)) and not has_letters(value):
        return replace(all_but(read(value)), name=tight(variable))
    return Form(kind="inequality", mark=r"\ne", parts=(scalar(sides[0]), scalar(sides[1])))


def _equality(sides: list[str], read: Read) -> Form:
    if len(sides) == 1:
        return read(sides[0])
    if len(sides) == 2 and not _is_name(sides[0], sides[1]) and _is_name(sides[1], sides[0]):
        sides = sides[::-1]
    if _is_name(sides[0], sides[-1]):
        if not _all_same(sides[1:]):
            return Form(kind="false")
        return replace(read(sides[-1]), name=tight(sides[0]))
    if _all_same(sides):
        return read(sides[-1])
    if len(sides) == 2 and any(has_letters(side) for side in sides):
        return Form(kind="equation", mark="=", parts=tuple(map(scalar, sides)))
    return Form(kind="false")


def _upwards(sides: list[str], signs: list[str]) -> tuple[list[str], list[str]]:
    """Turn a relation with > or >= signs around, so that its smallest side comes first."""
    if set(signs) <= {">", r"\ge"}:
        return sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    return sides, signs


def _is_name(side: str, other: str) -> bool:
    """True if a side of an equation is a name that the other side does not use."""
    name = tight(side)
    if not _NAME.fullmatch(name) or name in _NO_NAMES:
        return False
    if any(map(changes_amount, re.findall("[A-Za-z]{2,}", name))):  # at least = 7
        return False
    form = read_closed_form(other)
    return form is None or name not in form.letters


def _all_same(sides: Sequence[str]) -> bool:
    return all(same_function(side, sides[-1]) is True for side in sides[:-1])


def _ordering(sides: list[str], signs: list[str], read: Read) -> Form:
    """Read bounds of a letter, `a < x`, as an interval; other inequalities keep their sides."""
    lettered = [place for place, side in enumerate(sides) if has_letters(side)]
    if len(lettered) == 1 and _VARIABLE.fullmatch(name := tight(sides[lettered[0]])):
        left, right = ("(" if sign == "<" else "[" for sign in (signs[0], signs[-1]))
        right = ")" if right == "(" else "]"
        if len(sides) == 3 and lettered == [1]:
            return replace(interval(left + right, read(sides[0]), read(sides[2])), name=name)
        if len(sides) == 2 and lettered == [0]:
            return replace(interval("(" + right, scalar("-" + INFINITY), read(sides[1])), name=name)
        if len(sides) == 2:
            return replace(interval(left + ")", read(sides[0]), scalar(INFINITY)), name=name)
    return Form(kind="inequality", mark="".join(signs), parts=tuple(map(scalar, sides)))
