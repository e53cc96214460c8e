r"""Reads the shape of an answer: a list, a set, an interval, a relation, a matrix, one expression.

    uniform text -> the first reader that knows it -> Form, its parts read in the same way

`\pm 3` is the list 3, -3; `(B)` is B; a list of intervals is their union, but `x > 5 and x < 7` is
what the two share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from tasks.rewards.maths.form import (
    INFINITY,
    Form,
    Kind,
    all_but,
    all_numbers,
    as_interval,
    interval,
    scalar,
)
from tasks.rewards.maths.identity import constant_value
from tasks.rewards.maths.outline import peeled, split_at
from tasks.rewards.maths.relation_form import LETTER, read_congruence, read_relation
from tasks.rewards.maths.units import split_unit

_COMMA = re.compile("[,;]")
_SEPARATOR = re.compile(r"[,;]|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])|\\(?:lor|land)(?![a-zA-Z])")
_BOTH = frozenset(("and", r"\land"))
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_WITHOUT = re.compile(r"\\setminus(?![a-zA-Z])")
_COLON = re.compile(":")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])")
_BASED = re.compile(
    r"\(?(?P<digits>[0-9A-F]*[0-9][0-9A-F]*)\)?\s*_"
    r"\s*\{?\s*(?P<base>[0-9]{1,2}|[a-z]+)\s*\}?"
)
_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
    "nine": "9", "ten": "10", "sixteen": "16",
}  # fmt: skip
_GRID = r"\{(?:p|b|small|)(?:matrix|array)\}"
_MATRIX = re.compile(
    rf"\[?\s*\\begin{_GRID}\s*(?:\{{[lcr| ]*\}})?(?P<cells>.*)\\end{_GRID}\s*\]?",
    re.DOTALL,
)
_BUILDER = re.compile(rf"\s*{LETTER}\s*(?:\\in\s*\\mathbb\s*\{{?R\}}?\s*)?[|:](.+)")
_REAL_LINE = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|(?:\\text\{)?all real(?:s| numbers)\}?")
_WORDS = re.compile(r"\\text\s*\{[^{}]*\}|(?<![A-Za-z\\])[A-Za-z]{4,}")
_UPRIGHT = re.compile(r"\\text\s*\{([^{}]*)\}")
_CHOICE = re.compile(r"(?:(?:option|choice|answer)\s+)?\(?((?-i:[A-Z]))\)?\.?", re.IGNORECASE)
_LETTERS = re.compile("[A-Z]{2,3}")  # an ordering or a name: a product would be equal to BA
_BRACKETS = (
    (r"\{", r"\}"),
    (r"\langle", r"\rangle"),
    ("(", ")"),
    ("[", "]"),
    ("(", "]"),
    ("[", ")"),
)


@lru_cache(maxsize=4096)
def read_form(text: str) -> Form:
    """The form of a text in the uniform spelling; what nothing else reads is words or a scalar."""
    text = text.strip(" ,;")
    text = peeled(text if text.endswith("..") else text.removesuffix("."))
    for reader in READERS:
        if (form := reader(text)) is not None:
            return form
    return _read_rest(text)


def _read_constant_set(text: str) -> Form | None:
    if text == r"\emptyset":
        return Form(kind="set")
    return all_numbers() if _REAL_LINE.fullmatch(text) else None


def _read_listing(text: str) -> Form | None:
    found, signs = split_at(_SEPARATOR, text)
    pieces = [piece for piece in found if piece]
    if len(pieces) < 2:
        return None
    parts = tuple(read_form(piece) for piece in pieces)
    names = {part.name for part in parts}
    if parts[0].name and names == {parts[0].name, ""}:  # x = 2, 5
        names = {parts[0].name}
    name = names.pop() if len(names) == 1 else ""
    if name:
        parts = tuple(replace(part, name="") for part in parts)
    if name and set(signs) <= _BOTH and (shared := _shared(parts)) is not None:
        return replace(shared, name=name)
    if all(part.kind in ("interval", "union") for part in parts) and not split_at(_COMMA, text)[1]:
        return Form(kind="union", parts=_flat(parts, "union"), name=name)
    return Form(kind="list", parts=_flat(parts, "list"), name=name)


def _shared(parts: Sequence[Form]) -> Form | None:
    """The interval that two half-lines share; None for anything else, or if they share nothing."""
    if len(parts) != 2 or any(part.kind != "interval" for part in parts):
        return None
    upper, lower = sorted(parts, key=lambda part: INFINITY in part.parts[0].mark)
    low, high = upper.parts[0], lower.parts[1]
    ends = constant_value(low.mark), constant_value(high.mark)
    if ends[0] is None or ends[1] is None or not ends[0] < ends[1]:
        return None
    is_between = INFINITY in upper.parts[1].mark and INFINITY in lower.parts[0].mark
    return interval(upper.mark[0] + lower.mark[1], low, high) if is_between else None


def _flat(parts: Sequence[Form], kind: Kind) -> tuple[Form, ...]:
    """The parts, those of the kind replaced by theirs."""
    spread = [part.parts if part.kind == kind and not part.name else (part,) for part in parts]
    return tuple(part for some in spread for part in some)


def _read_union(text: str) -> Form | None:
    pieces, signs = split_at(_CUP, text)
    if not signs:
        return None
    parts = [as_interval(read_form(piece)) for piece in pieces]
    return Form(kind="union", parts=_flat(parts, "union"))


def _read_without(text: str) -> Form | None:
    r"""`\mathbb{R} \setminus \{0\}` as a union of intervals."""
    pieces, signs = split_at(_WITHOUT, text)
    if len(signs) != 1 or not _REAL_LINE.fullmatch(pieces[0]):
        return None
    holes = read_form(pieces[1])
    return all_but(holes.parts[0]) if holes.kind == "set" and len(holes.parts) == 1 else None


def _read_matrix(text: str) -> Form | None:
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match["cells"]:
        return None
    rows = [row.split("&") for row in match["cells"].split("\\\\") if row.strip()]
    cells = [tuple(read_form(cell) for cell in row) for row in rows]
    return Form(kind="matrix", parts=tuple(Form(kind="row", parts=row) for row in cells))


def _read_brackets(text: str) -> Form | None:
    r"""`\{1,2\}`, `(1,2)`, `[1,2)`, `\langle 1,2 \rangle`, `\{x \mid x > 2\}`."""
    for opening, closing in _BRACKETS:
        size = len(opening) + len(closing)
        if text.startswith(opening) and text.endswith(closing) and len(text) >= size:
            inside = text[len(opening) : -len(closing)]
            if opening == r"\{" and (builder := _BUILDER.fullmatch(inside)):
                return read_form(builder[1])
            pieces, commas = split_at(_COMMA, inside)
            parts = tuple(read_form(piece) for piece in pieces if piece)
            if opening == r"\{":
                return Form(kind="set", parts=_flat(parts, "list"))
            if commas and len(parts) == len(pieces):
                return _read_ordered(opening + closing, parts)
    return None


def _read_ordered(brackets: str, parts: tuple[Form, ...]) -> Form | None:
    is_infinite = brackets == "()" and any(INFINITY in part.mark for part in parts)
    if len(parts) == 2 and (brackets in ("[]", "[)", "(]") or is_infinite):
        return interval(brackets, *parts)
    if brackets in ("()", r"\langle\rangle", "[]"):
        return Form(kind="tuple", mark="[]" if brackets == "[]" else "", parts=parts)
    return None


def _read_plus_minus(text: str) -> Form | None:
    if not _PLUS_MINUS.search(text):
        return None
    upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    return Form(kind="list", parts=(read_form(upper), read_form(lower)))


def _read_based(text: str) -> Form | None:
    match = _BASED.fullmatch(_UPRIGHT.sub(r"\1", text))
    if match is None:
        return None
    base = _BASES.get(match["base"], match["base"])
    digits = match["digits"]
    return scalar(digits) if base == "10" else Form(kind="based", mark=f"{digits}_{base}")


def _read_ratio(text: str) -> Form | None:
    pieces, colons = split_at(_COLON, text)
    if not colons or not all(re.fullmatch(r"[0-9 .]+", piece) for piece in pieces):
        return None
    return Form(kind="ratio", parts=tuple(read_form(piece) for piece in pieces))


def _read_rest(text: str) -> Form:
    """A choice, words, letters in an order, or an expression."""
    if choice := _CHOICE.fullmatch(_UPRIGHT.sub(lambda match: match[1].strip(), text)):
        return scalar(choice[1])
    if _LETTERS.fullmatch(text):
        return Form(kind="letters", mark=text)
    if _WORDS.search(split_unit(text)[0]):
        words = _UPRIGHT.sub(lambda match: f" {match[1]} ", text)
        words = re.sub(r"[.,;\\{}]", " ", words).casefold()
        return Form(kind="words", mark=" ".join(words.split()))
    return scalar(text)


READERS: tuple[Callable[[str], Form | None], ...] = (
    _read_constant_set,
    lambda text: read_congruence(text, read_form),
    _read_listing,
    _read_union,
    _read_without,
    lambda text: read_relation(text, read_form),
    _read_matrix,
    _read_brackets,
    _read_plus_minus,
    _read_based,
    _read_ratio,
)
