r"""Reads the shape of an answer: a list, a set, an interval, a relation, a matrix, an expression.

    uniform text -> the first reader that knows its shape -> Form, its parts read in the same way

`\pm 3` is the list 3, -3; `(B)` is B. A list of intervals is their union, but `x > 5 and x < 7` is
their intersection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from tasks.rewards.maths.form import (
    INFINITY,
    RANGES,
    Form,
    Kind,
    all_but,
    as_interval,
    interval,
    scalar,
    shared,
)
from tasks.rewards.maths.notation import peeled, split_at
from tasks.rewards.maths.relation_form import LETTER, read_congruence, read_relation
from tasks.rewards.maths.units import split_unit

_COMMA = re.compile("[,;]")
_COMMAS = frozenset((",", ";"))
_SEPARATOR = re.compile(r"[,;]|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])|\\(?:lor|land)(?![a-zA-Z])")
_BOTH, _EITHER = frozenset(("and", r"\land")), frozenset(("or", r"\lor"))
_COMPARED = ("<", ">", r"\le", r"\ge")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_CAP = re.compile(r"\\cap(?![a-zA-Z])")
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
    rf"\[?\s*\\begin{_GRID}\s*(?:\{{[lcr| ]*\}})?(?P<cells>.*)\\end{_GRID}\s*\]?", re.DOTALL
)
_BUILDER = re.compile(rf"\s*{LETTER}\s*(?:\\in\s*\\mathbb\s*\{{?R\}}?\s*)?[|:](.+)")
_REAL_LINE = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|(?:\\text\{)?all real(?:s| numbers)\}?")
_WORDS = re.compile(r"\\text\s*\{[^{}]*\}|(?<![A-Za-z\\])[A-Za-z]{4,}")
_UPRIGHT = re.compile(r"\\text\s*\{([^{}]*)\}")
_CHOICE = re.compile(r"(?:(?:option|choice|answer)\s+)?\(?((?-i:[A-Z]))\)?\.?", re.IGNORECASE)
_LABEL = (
    r"(?:(?:[Oo]ption|[Cc]hoice)\s*)?"
    r"(?:\((?P<round>[A-J])\)[.:]?(?=\s)|(?P<label>[A-J])(?:\)|[.:](?=\s)))"
)
_LABEL_STARTS = frozenset("ABCDEFGHIJOoc(\\")
_LABELLED = re.compile(
    rf"{_LABEL}\s*(?P<text>(?!(?:\\text\{{\s*)?(?:is|was|or|and|not|nor)(?![a-z]))\S.*)"
)
_OTHER_LABEL = re.compile(r"(?<![A-Za-z\\])[A-J][).]")
_UPRIGHT_LABEL = re.compile(r"\A\\text\s*\{\s*((?:[A-Za-z]+\s)?\(?[A-J][).:]?)((?<=[).:])[^{}]*)\}")
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
    """Read a text in the uniform spelling; unknown shapes become words, letters or a scalar."""
    text = text.strip(" ,;")
    if text.startswith("{{") and "," in text and text.endswith("}}"):
        inside = text[1:-1]  # {{1, 2}}: the inner braces are no group of TeX's
        if peeled(text) != text and peeled(inside) != inside:
            return Form(kind="set", parts=(replace(read_form(inside), kind="set"),))
    text = peeled(text if text.endswith("..") else text.removesuffix("."))
    for reader in READERS:
        if (form := reader(text)) is not None:
            return form
    return _read_rest(text)


def _read_listing(text: str) -> Form | None:
    found, signs = split_at(_SEPARATOR, text)
    if sum(map(bool, found)) < 2:
        return None
    joints: list[str] = []  # for every piece, the sign or word that joins it to the one before
    pieces: list[str] = []
    joint = ""
    for sign, piece in zip(["", *signs], found, strict=True):
        joint = sign if sign not in _COMMAS else joint or sign  # ", and" is "and"
        if piece:
            joints.append(joint)
            pieces.append(piece)
            joint = ""
    parts: list[Form] = []
    for piece in pieces:
        part = read_form(piece)
        is_set = piece[0] == "{" and piece != peeled(piece) and len(piece) > 2  # {1}: no TeX group
        parts.append(Form(kind="set", parts=(part,)) if is_set else part)
    names = {part.name for part in parts}
    if parts[0].name and names == {parts[0].name, ""}:  # x = 2, 5
        names = {parts[0].name}
    name = names.pop() if len(names) == 1 else ""
    if name:
        parts = [replace(part, name="") for part in parts]
    is_stated = bool(name) or len(names) > 1 or pieces[0].startswith(_COMPARED)
    return replace(_listed(joints, parts, is_stated=is_stated), name=name)


def _listed(joints: Sequence[str], parts: Sequence[Form], *, is_stated: bool) -> Form:
    is_strict = r"\land" in joints
    has_two_names = len({part.name for part in parts} - {""}) > 1
    kinds = {part.kind for part in parts}
    groups: list[list[Form]] = []  # parts that are joined by "and"
    for joint, part in zip(joints, parts, strict=True):
        if joint in _BOTH:
            groups[-1].append(part)
        else:
            groups.append([part])
    if (
        "inequality" in kinds
        or (kinds <= RANGES and (is_stated or is_strict))
        or (is_strict and is_stated and not has_two_names)
    ):
        parts = []
        for group in groups:
            common = shared(group) if len({part.name for part in group}) == 1 else None
            both = common or Form(kind="both", parts=tuple(group))
            parts.append(group[0] if len(group) == 1 else both)
        if len(parts) == 1:
            return parts[0]
    if (has_two_names or kinds & {"equation", "inequality"}) and not _EITHER.isdisjoint(joints):
        options = [_listing("list", group) if len(group) > 1 else group[0] for group in groups]
        return Form(kind="either", parts=tuple(options))
    are_ranges = all(part.kind in RANGES for part in parts)
    return _listing("union" if are_ranges and _COMMAS.isdisjoint(joints) else "list", parts)


def _listing(kind: Kind, parts: Sequence[Form], flat: Kind | None = None) -> Form:
    """A form of parts, with unnamed parts of the kind `flat` (default: `kind`) taken apart."""
    spread = [
        part.parts if part.kind == (flat or kind) and not part.name else (part,) for part in parts
    ]
    return Form(kind=kind, parts=tuple(part for some in spread for part in some))


def _read_union(text: str) -> Form | None:
    """Read a union or an intersection; None for both in one text, which can be read twice."""
    (united, cups), (met, caps) = split_at(_CUP, text), split_at(_CAP, text)
    pieces = united if cups else met
    if bool(cups) == bool(caps) or not all(pieces):
        return None
    parts = [as_interval(read_form(piece)) for piece in pieces]
    if caps:
        return shared(parts)
    return _listing("set" if all(part.kind == "set" for part in parts) else "union", parts)


def _read_choice(text: str) -> Form | None:
    """Read a choice, `A) 12`: its letter and its text, either of which may be the answer."""

    def lowered(match: re.Match[str]) -> str:
        """Move a label out of upright text; the rest stays upright."""
        rest = match[2].strip()
        return f"{match[1]} " + (rf"\text{{{rest}}}" if re.search("[A-Za-z]", rest) else rest)

    if text[:1] not in _LABEL_STARTS:
        return None
    match = _LABELLED.fullmatch(_UPRIGHT_LABEL.sub(lowered, text, count=1))
    if match is None or _OTHER_LABEL.search(match["text"]):
        return None
    label = match["round"] or match["label"]
    return Form(kind="choice", mark=label, parts=(read_form(match["text"]),))


def _read_constant_set(text: str) -> Form | None:
    r"""Read the empty set, the real line, or `\mathbb{R} \setminus \{0\}`."""
    if text == r"\emptyset":
        return Form(kind="set")
    if _REAL_LINE.fullmatch(text):
        return interval("()", scalar("-" + INFINITY), scalar(INFINITY))
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
    for opening, closing in _BRACKETS:
        size = len(opening) + len(closing)
        if text.startswith(opening) and text.endswith(closing) and len(text) >= size:
            inside = text[len(opening) : -len(closing)]
            if opening == r"\{" and (builder := _BUILDER.fullmatch(inside)):
                return read_form(builder[1])
            pieces, commas = split_at(_COMMA, inside)
            parts = tuple(read_form(piece) for piece in pieces if piece)
            if opening == r"\{":
                return _listing("set", parts, flat="list")
            if not commas or len(parts) != len(pieces):
                continue
            brackets = opening + closing
            is_infinite = brackets == "()" and any(INFINITY in part.mark for part in parts)
            if len(parts) == 2 and (brackets in ("[]", "[)", "(]") or is_infinite):
                return interval(brackets, *parts)
            if brackets in ("()", r"\langle\rangle", "[]"):
                return Form(kind="tuple", mark="[]" if brackets == "[]" else "", parts=parts)
            return None
    return None


def _read_plus_minus(text: str) -> Form | None:
    if not _PLUS_MINUS.search(text):
        return None
    upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    return Form(kind="list", parts=(read_form(upper), read_form(lower)))


def _read_numeral(text: str) -> Form | None:
    """Read a number with its base, or a ratio of numbers."""
    if match := _BASED.fullmatch(_UPRIGHT.sub(r"\1", text)):
        base = _BASES.get(match["base"], match["base"])
        digits = match["digits"]
        return scalar(digits) if base == "10" else Form(kind="based", mark=f"{digits}_{base}")
    pieces, colons = split_at(_COLON, text)
    if not colons or not all(re.fullmatch(r"[0-9 .]+", piece) for piece in pieces):
        return None
    return Form(kind="ratio", parts=tuple(read_form(piece) for piece in pieces))


def _read_rest(text: str) -> Form:
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
    _read_choice,
    lambda text: read_congruence(text, read_form),
    _read_listing,
    _read_union,
    _read_constant_set,
    lambda text: read_relation(text, read_form),
    _read_matrix,
    _read_brackets,
    _read_plus_minus,
    _read_numeral,
)
