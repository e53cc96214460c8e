r"""The shape of an answer as a record, and the few ways to make one that several readers share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.rewards.maths.bounded_arithmetic import Number, context
from tasks.rewards.maths.closed_form import read_closed_form
from tasks.rewards.maths.identity import constant_value
from tasks.rewards.maths.notation import peeled

Kind = Literal[
    "scalar", "words", "letters", "based", "ratio", "list", "set", "tuple", "interval", "union",
    "matrix", "row", "congruence", "equation", "inequality", "both", "either",
    "choice", "approximate", "false",
]  # fmt: skip

INFINITY = r"\infty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """An answer or a part of one."""

    kind: Kind  # what it is; "false" is a relation that does not hold
    mark: str = ""  # what parts do not hold: a scalar's text, words, brackets, a sign of comparison
    parts: tuple[Form, ...] = ()  # in their order
    name: str = ""  # the letter or function whose value it is said to be, if any


def scalar(text: str) -> Form:
    """One expression, read or not."""
    return Form(kind="scalar", mark=" ".join(text.removeprefix("+").split()))


def interval(brackets: str, low: Form, high: Form) -> Form:
    """Between two ends; at infinity it is open however it is written."""
    left = "(" if INFINITY in low.mark else brackets[0]
    right = ")" if INFINITY in high.mark else brackets[1]
    return Form(kind="interval", mark=left + right, parts=(low, high))


def all_but(hole: Form) -> Form:
    """All real numbers but one."""
    below = interval("()", scalar("-" + INFINITY), hole)
    return Form(kind="union", parts=(below, interval("()", hole, scalar(INFINITY))))


def all_numbers() -> Form:
    """The real line."""
    return interval("()", scalar("-" + INFINITY), scalar(INFINITY))


def as_interval(form: Form) -> Form:
    """`(1, 2)` where only an interval makes sense."""
    is_pair = form.kind == "tuple" and len(form.parts) == 2
    return interval("()", *form.parts) if is_pair else form


def tight(text: str) -> str:
    """Without blanks and outer brackets; words keep their blanks."""
    return text.strip() if "\\text" in text else peeled(re.sub(r"\s+", "", text))


def has_letters(text: str) -> bool:
    """Whether text is an expression with variables."""
    form = read_closed_form(text)
    return form is not None and bool(form.letters)


RANGES = frozenset(("interval", "union"))


@dataclass(frozen=True, slots=True)
class _End:
    """An end of an interval."""

    value: Number
    is_open: bool
    form: Form


def shared(parts: Sequence[Form]) -> Form | None:
    """The range that all of them share; None if one is no range or has an end with a letter."""
    ranges = [part.parts if part.kind == "union" else (part,) for part in parts]
    common = [*ranges[0]]
    for others in ranges[1:]:
        met = [_meeting(one, other) for one in common for other in others]
        if None in met:
            return None
        common = [form for form in met if form and form.parts]
    if len(common) == 1:
        return common[0]
    return Form(kind="union", parts=tuple(common)) if common else Form(kind="set")


def _meeting(first: Form, second: Form) -> Form | None:
    """What two intervals share, an empty set if nothing; None if that cannot be told."""
    ends = [_ends(form) for form in (first, second)]
    if ends[0] is None or ends[1] is None:
        return None
    low = max(ends[0][0], ends[1][0], key=lambda end: (end.value, end.is_open))
    high = min(ends[0][1], ends[1][1], key=lambda end: (end.value, not end.is_open))
    if low.value < high.value:
        return interval("[("[low.is_open] + "])"[high.is_open], low.form, high.form)
    is_point = low.value == high.value and not (low.is_open or high.is_open)
    return Form(kind="set", parts=(low.form,) if is_point else ())


def _ends(form: Form) -> tuple[_End, _End] | None:
    if form.kind != "interval":
        return None
    values = [_value(part.mark) for part in form.parts]
    if values[0] is None or values[1] is None:
        return None
    low, high = form.parts
    return _End(values[0], form.mark[0] == "(", low), _End(values[1], form.mark[1] == ")", high)


def _value(text: str) -> Number | None:
    if INFINITY in text:
        return -context.inf if text.lstrip().startswith("-") else context.inf
    return constant_value(text)
