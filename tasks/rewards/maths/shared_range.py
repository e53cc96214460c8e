r"""What ranges of numbers have in common: `x > 1` and `x \le 5` share (1, 5]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.rewards.maths.bounded_arithmetic import Number, context
from tasks.rewards.maths.form import INFINITY, Form, interval
from tasks.rewards.maths.identity import constant_value

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
