r"""Where a response states its answer: text in, the answer's characters out. Nothing here knows
whether it is right.

    response -> visible_text (first turn only) -> answer_tail (4,000 characters, NFKC)
    -> behind </think>, else anywhere: last \boxed{}, else last <answer></answer>, else last Answer
    line

Every step is linear in the length of the response, whatever the model wrote. Left out: values
(`exact_number`).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import groupby

TAIL_CHARS = 4_000

# Special tokens of the common chat templates, as text. An engine that decodes without special
# tokens leaves the role name of a ChatML turn behind, glued to what came before ("Answer:
# 8user\n"): the second pattern finds that.
_MARKER = re.compile(
    r"<(?:\|(?:im_start|im_end|endoftext|eot_id|start_header_id|end_header_id"
    r"|begin_of_text|user|assistant|system|end)\|>"
    r"|/?s>|(?:start|end)_of_turn>|[｜]User[｜]>|[｜]Assistant[｜]>)|\[/?INST\]"
)
_BARE_ROLE = re.compile(r"(?<![A-Za-z \t])(?:user|assistant|system)[ \t]*\n")

# NFKC would make plain letters of these.
_SETS = str.maketrans({
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}",
    "ℂ": r"\mathbb{C}",
})  # fmt: skip
_BRACE = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# answer\W{0,6}\s*(number), the rule of tiny-mix, with a sign, a currency's and a leading \frac kept
# as parts of the number, and without signs that would make another number of it.
_BETWEEN = r"[^A-Za-z0-9_√≤≥≠±∓¬!/^%]{0,6}?\s*"
# a sign with a blank behind it: one in a formula or behind a colon; else it is a dash or a bullet
_APART = r"(?:(?<=[:=$(*])|(?<=[:=$(*] ))[-+–](?:[ \t]|\\[,;:])+"
_SIGN = rf"(?:{_APART}|[-+]|(?<![A-Za-z])–)?"
_NUMBER = _SIGN + r"(?:\\?\$)?(?:\\[dt]?frac\s*\{?\s*[-+]?\d|\.?\d)"
_NUMBER_LINE = re.compile(rf"answer{_BETWEEN}(?P<value>{_NUMBER}[^\n]*)", re.IGNORECASE | re.ASCII)
_LINE = re.compile(r"answer[*_]*\s*[:=][*_]*[^\S\n]*\n?(?P<value>[^\n]*\S)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalAnswer:
    """What a response gives as its answer."""

    text: str  # the characters, unjudged
    # from \boxed{} or <answer></answer>: the whole content is the answer; otherwise the text runs
    # to the end of its line
    boxed: bool


def visible_text(text: str) -> str:
    """The response up to the first template marker: a turn that the model writes for somebody else
    is not its answer."""
    marker = _MARKER.search(text)
    text = text[: marker.start()] if marker else text
    role = _BARE_ROLE.search(text)
    return text[: role.start()] if role else text


def answer_tail(text: str) -> str:
    """The last 4,000 visible characters, in compatibility normal form."""
    return fold(visible_text(text)[-TAIL_CHARS:])


def fold(text: str) -> str:
    """NFKC with U+2212 as '-', except that it never glues an exponent or a vulgar fraction to the
    digits before it."""
    if text.isascii():
        return text
    runs = groupby(text.translate(_SETS), key=_apart)
    spaced = "".join(_unglued(sign, "".join(run)) for sign, run in runs)
    return (
        unicodedata.normalize("NFKC", spaced)
        .replace("\N{MINUS SIGN}", "-")
        .replace("\N{FRACTION SLASH}", "/")
    )


def _apart(character: str) -> str:
    """What keeps a character apart from those before it: nothing, a blank, or the sign of its
    script."""
    decomposition = "" if character.isascii() else unicodedata.decomposition(character)
    signs = {"<super>": "^", "<sub>": "_", "<fraction>": " ", "<circle>": " "}
    return signs.get(decomposition.partition(" ")[0], "")


def _unglued(sign: str, run: str) -> str:
    """Neighbours of one kind: a script's share its sign, fractions are numbers of their own."""
    if sign in ("^", "_"):
        return sign + (run if len(run) == 1 else f"{{{run}}}")
    return "".join(sign + character for character in run) if sign else run


def last_boxed(text: str) -> str | None:
    r"""The content of the balanced \boxed{} that opens last; None if there is none."""
    opened: list[int | None] = []  # content start of an open \boxed{, None for a plain brace
    found: tuple[int, int] | None = None
    for token in _BRACE.finditer(text):
        if token[0] == "{":
            opened.append(None)
        elif token[0].startswith("\\boxed"):
            opened.append(token.end())
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start is not None and (found is None or start > found[0]):
                found = start, token.start()
    return text[found[0] : found[1]] if found else None


def find_number(tail: str) -> FinalAnswer | None:
    r"""The answer to a question whose gold is a number: the last \boxed{}, else <answer></answer>,
    else the last "answer" followed by a number."""
    return _stated(tail, _NUMBER_LINE)


def find_expression(tail: str) -> FinalAnswer | None:
    r"""The answer to any other question: the last \boxed{}, else <answer></answer>, else the last
    "Answer:" line."""
    return _stated(tail, _LINE)


def thought_last(text: str) -> tuple[str, ...]:
    """Where to look for an answer, in this order: in what follows a thought, then in all of the
    text; just there if it has no thought."""
    return tuple(dict.fromkeys((text.rpartition("</think>")[2], text)))


def _stated(tail: str, line: re.Pattern[str]) -> FinalAnswer | None:
    found = (_enclosed_or(part, line) for part in thought_last(tail))
    return next(filter(None, found), None)


def _enclosed_or(tail: str, line: re.Pattern[str]) -> FinalAnswer | None:
    if (boxed := last_boxed(tail)) is not None:
        return FinalAnswer(text=boxed, boxed=True)
    if tagged := _TAGGED.findall(tail):
        return FinalAnswer(text=tagged[-1].strip(), boxed=True)
    last = None
    for last in line.finditer(tail):  # noqa: B007 (the last match is wanted)
        pass
    return FinalAnswer(text=last["value"], boxed=False) if last else None
