r"""The shape of an answer as a record, and the few ways to make one that several readers share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tasks.rewards.maths.closed_form import read_closed_form
from tasks.rewards.maths.outline import peeled

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
