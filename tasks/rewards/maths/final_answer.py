r"""Where a response states its answer: text in, the answer's characters out. Nothing here knows
the gold, or whether the answer is right.

    response -> visible_text (first turn only) -> answer_tail (4,000 characters, NFKC)
    -> behind </think>, else anywhere: last \boxed{}, else last <answer></answer>, else last
    "Answer:" line, else last "answer is", else last "#### 42"

Every step is linear in the length of the response, whatever the model wrote. Left out: values
(`exact_number`), marks and comments around an answer (`answer_line`).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import groupby

from tasks.rewards.maths.answer_line import TAG, bare_answer, unmarked

TAIL_CHARS = 4_000

# Special tokens of the common chat templates, as text. An engine that decodes without special
# tokens leaves the role name of a ChatML turn behind, glued to what came before ("Answer:
# 8user\n"): the second pattern finds that.
_MARKER = re.compile(
    r"<(?:\|(?:im_start|im_end|endoftext|eot_id|start_header_id|end_header_id"
    r"|begin_of_text|user|assistant|system|end)\|>"
    r"|/?s>|(?:start|end)_of_turn>|[｜]User[｜]>|[｜]Assistant[｜]>)|\[/?INST\]"
)
_GLUED = r"(?<![^\n0-9.!?)\]}$*\"'>]%s)"  # to the end of a sentence or formula: no power-user
_BARE_ROLE = re.compile(
    rf"(?:{'|'.join(role + _GLUED % role for role in ('user', 'assistant', 'system'))})[ \t]*\n"
)

# NFKC would make plain letters of these.
_SETS = str.maketrans({
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}",
    "ℂ": r"\mathbb{C}",
})  # fmt: skip
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_UNBRACED = re.compile(
    r"\\boxed(?![A-Za-z])\s*(?P<value>[-+0-9.(\\][^\n$]*|[A-Za-z](?![A-Za-z])[^\n$]*)"
)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARK = rf"(?:{TAG}|[*_`\"'”)\]}}]|[^\S\n])*+"  # that ends behind the word
_OPEN = rf"(?:{TAG}|[*`}}]|_(?=[^\n]*_)|[^\S\n])*+"  # that begins behind the sign
_NUMBER = r"(?:\\?\$)?(?:\\[dt]?frac|\.?[0-9])"
_DISPLAYED = r"\$\$[^$]{1,600}\$\$|\\\[(?:(?!\\\])(?s:.)){1,600}\\\]"  # over several lines
# What may stand between the word and any answer, and what between it and a number only: a dash,
# or nothing but blanks, brackets and marks, behind which a sign is the number's.
_LINE = re.compile(
    rf"answers?(?:{_MARK}(?::=?|=|→|⇒){_OPEN}(?:\s*\n\s*[-–•*]\s+|\s*)"
    rf"|{_MARK}\n\s*(?={_DISPLAYED})"
    rf"|\s*(?:[–—]\s*|(?<=\s)-\s+)(?={_NUMBER})"
    rf"|[\s.,(\[\"'*_`$|#]{{0,8}}?\s*+(?=(?:(?<=[$(*])[-+][\s\\,;:]*|[-+])?{_NUMBER}))"
    rf"(?P<value>(?:{_DISPLAYED})?(?:(?!answers?{_MARK}[:=])[^\n])*)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    r"answers?\s+(?:is|equals)(?:\s+(?:then|thus|therefore|simply|equal\s+to))*\s*:?\s*"
    r"(?P<value>(?:[-+–(\[{|$\\*\"“`√∅.0-9]|(?:yes|no|true|false|none|option|choice)(?![A-Za-z])"
    r"|(?!a\s+[a-z]{2})[A-Za-z](?![A-Za-z']))[^\n]*)",
    re.IGNORECASE,
)
_HASHES = re.compile(r"^####[ \t]*(?P<value>[-+]?\\?\$?\.?[0-9][0-9,./%]*)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalAnswer:
    """An answer as a response gives it."""

    text: str  # the characters, unjudged
    # from \boxed{} or <answer></answer>: the whole content is the answer; otherwise the text runs
    # to the end of its line
    boxed: bool

    @property
    def bare(self) -> str:
        """The answer without marks and, on a line, comments."""
        return unmarked(self.text) if self.boxed else bare_answer(self.text)


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


def last_boxed(text: str) -> FinalAnswer | None:
    r"""The content of the balanced \boxed{} that opens last, or what stands behind a later \boxed
    without braces; None if there is neither."""
    opened: list[int | None] = []  # content start of an open \boxed{, None for a plain brace
    found: tuple[int, int] | None = None
    for token in _BRACE.finditer(text):
        if token[0] == "{":
            opened.append(None)
        elif token[0][-1] == "{" and token[0] != "\\{":
            opened.append(token.end())
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start is not None and (found is None or start > found[0]):
                found = start, token.start()
    unbraced = list(_UNBRACED.finditer(text, found[1] if found else 0))
    if unbraced:
        return FinalAnswer(text=unbraced[-1]["value"], boxed=False)
    return FinalAnswer(text=text[found[0] : found[1]], boxed=True) if found else None


def find_answer(tail: str) -> FinalAnswer | None:
    r"""The answer of a response, whatever its gold is: the last \boxed{}, else <answer></answer>,
    else the last "Answer:" line, else the last "answer is" or "####"."""
    found = map(_stated, thought_last(tail))
    return next(filter(None, found), None)


def thought_last(text: str) -> tuple[str, ...]:
    """Where to look for an answer, in this order: in what follows a thought, then in all of the
    text; just there if it has no thought."""
    return tuple(dict.fromkeys((text.rpartition("</think>")[2], text)))


def _stated(tail: str) -> FinalAnswer | None:
    if (boxed := last_boxed(tail)) is not None:
        return boxed
    if tagged := _TAGGED.findall(tail):
        return FinalAnswer(text=tagged[-1].strip(), boxed=True)
    for pattern in (_LINE, _SENTENCE, _HASHES):
        stated = [line["value"] for line in pattern.finditer(tail) if line["value"].strip()]
        if stated:
            return FinalAnswer(text=stated[-1].strip(), boxed=False)
    return None
