r"""The record `Form`, which describes the shape of an answer, and functions that several readers
use to make one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    """The shape of an answer, or of a part of one."""

    kind: Kind  # kind of the shape; "false" is a relation that does not hold
    mark: str = ""  # content that is no part: a scalar's text, words, brackets, a comparison sign
    parts: tuple[Form, ...] = ()  # the parts in order
    name: str = ""  # letter or function that the answer names as its value's, such as x in x = 5


def scalar(text: str) -> Form:
    """The form of a single expression, which is not parsed here."""
    return Form(kind="scalar", mark=" ".join(text.removeprefix("+").split()))


def interval(brackets: str, low: Form, high: Form) -> Form:
    """The form of an interval with brackets such as "[)"; an end at infinity is always open."""
    left = "(" if INFINITY in low.mark else brackets[0]
    right = ")" if INFINITY in high.mark else brackets[1]
    return Form(kind="interval", mark=left + right, parts=(low, high))


def all_but(hole: Form) -> Form:
    """The form of all real numbers except `hole`: a union of two intervals."""
    below = interval("()", scalar("-" + INFINITY), hole)
    return Form(kind="union", parts=(below, interval("()", hole, scalar(INFINITY))))


def as_interval(form: Form) -> Form:
    """Convert a pair `(1, 2)` to an interval, where only one makes sense; keep other forms."""
    is_pair = form.kind == "tuple" and len(form.parts) == 2
    return interval("()", *form.parts) if is_pair else form


def tight(text: str) -> str:
    """Remove blanks and outer brackets from a text; a text with words keeps them."""
    return text.strip() if "\\text" in text else peeled(re.sub(r"\s+", "", text))


def has_letters(text: str) -> bool:
    """True if the text is a closed form with at least one variable."""
    form = read_closed_form(text)
    return form is not None and bool(form.letters)


RANGES = frozenset(("interval", "union"))


class _End(NamedTuple):
    """An end of an interval."""

    value: Number
    is_open: bool
    form: Form


def shared(parts: Sequence[Form]) -> Form | None:
    """The intersection of ranges (intervals and unions). None if a part is no range, or if an end
    has no real value, such as an end with a letter."""
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
    """The intersection of two intervals, a set if a point or empty; None without real ends."""
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
    ends: list[_End] = []
    for part, bracket in zip(form.parts, form.mark, strict=True):
        if INFINITY in part.mark:
            value = -context.inf if part.mark.lstrip().startswith("-") else context.inf
        else:
            value = constant_value(part.mark)
        if value is None:
            return None
        ends.append(_End(value, bracket in "()", part))
    return ends[0], ends[1]
