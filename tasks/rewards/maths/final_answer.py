r"""Finds the answer that a response states: text in, the answer's text out, without the gold.

    response -> visible_text (first turn only) -> answer_tail (4,000 characters, NFKC)
    -> after </think>, else anywhere: last \boxed{}, else last <answer></answer>, else last
    "Answer:" line, else last "answer is", else last "#### 42"

    "**x+1** ✓. I hope it is correct." -> "x+1"        "$42$, I think" -> "$42$"

Every step takes time linear in the length of the response, whatever the model wrote. Of the text
around an answer only the patterns listed here are removed, and only at the ends.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import groupby

from tasks.rewards.maths.units import changes_amount

_TICKS = (
    "\N{CHECK MARK}\N{HEAVY CHECK MARK}\N{WHITE HEAVY CHECK MARK}\N{BALLOT BOX WITH CHECK}"
    "\N{END OF PROOF}\N{WHITE MEDIUM STAR}\N{SPARKLES}\N{BLACK STAR}\N{WHITE STAR}"
    "\N{HEAVY BLACK HEART}\N{WHITE SMILING FACE}\N{ELECTRIC LIGHT BULB}\N{ROCKET}"
    "\N{DIRECT HIT}\N{TROPHY}\N{FIRE}\N{LARGE GREEN CIRCLE}\N{LARGE GREEN SQUARE}"
    "\N{HUNDRED POINTS SYMBOL}\N{VARIATION SELECTOR-16}"
    "\u25a0\u25a1\u25a2\u25a3\u25aa\u25ab\u25fb\u25fc\u25fd\u25fe\u2b1b\u2b1c"  # ends of proofs
    "\U0001f389\U0001f38a\U0001f44d\U0001f44f\U0001f64c\U0001f970\U0001f971\U0001f972\U0001f973"
    + "".join(map(chr, range(0x1F600, 0x1F645)))  # faces
)
TAG = r"</?(?:b|i|u|em|strong|mark|p|br|div|span|code)\s*/?>"
_END_SIGNS = f" \t\n{_TICKS}*_`;,\\"
_END_WORDS = re.compile(
    rf"(?:{TAG}|\$*\\(?:checkmark|square|blacksquare|Box|qed|qedsymbol)\$*"
    r"|(?<![A-Za-z])Q\.?E\.?D\.?"
    r"|\\[:!>]|[\s.,;(]I hope (?:it|this|that) is (?:correct|right)[.!)]*"
    r"|(?<=[\s$])is (?:the|our) (?:(?:final|correct|right) )?answer)\Z"
)
_MAY_END_WORDS = re.compile(r"[A-Za-z$>).:!]\Z")
_START = re.compile(
    rf"\s+|\\[,;:! ]|[{_TICKS}]|{TAG}|:|#+\s|[*•]\s+|[\N{{THEREFORE}}\N{{RIGHTWARDS DOUBLE ARROW}}]"
    r"|\\(?:therefore|Rightarrow|implies)(?![A-Za-z])"
    r"|(?:(?:so|thus|hence|therefore)\b[\s,]*)?(?:the\s+)?(?:(?:final|correct|right)\s+)?"
    r"answer\s*(?:\bis\b(?:\s+equal\s+to\b)?\s*:?|[:=])",
    re.IGNORECASE,
)
_PLAIN_NUMBER = re.compile(r"[-+]?\\?\$?[0-9](?:[0-9,.]*[0-9])?")  # as most answers are
_PAIRS = ("**", "__", "*", "`")
_QUOTES = (('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("«", "»"), ("<", ">"))
_CLOSING = {")": "(", "]": "[", "}": "{", ">": "<", '"': '"', "”": "“"}
# Full stops that do not end a sentence: "sq. ft.", "p.m.", "Mr. Smith", the choice "B. 12".
_ABBREVIATION = re.compile(
    r"\A\W*[A-Z]\Z"
    r"|(?<![A-Za-z])(?i:sq|cu|ft|yd|mi|oz|lbs?|hrs?|mins?|secs?"
    r"|[ap]\.m|mr|mrs|ms|dr|vs|e\.g|i\.e)\Z"
)
_SENTENCE_END = re.compile(r"(?<!\.)[.?](?!\.)[\")*`]*(?=\s+(?![-+*/=<>0-9\s])|\Z)")
# "42, I think", "8 pens in total"
_ASIDE = re.compile(
    r"(?:,\s+(?=(?:I|we|you|it|which|where|by|thus|hence|after|in|at|the|of course"
    r"|obviously|clearly)(?![A-Za-z]))"
    r"|,?\s+(?=(?:as|because|since|so|in total|in all|altogether)(?![A-Za-z])))"
    r"[A-Za-z' ]*\Z"
)


def bare_answer(line: str) -> str:
    """The answer that a line states, up to a comment or the sentence's end, without marks."""
    text = bare = unmarked(line)
    if _PLAIN_NUMBER.fullmatch(text):
        return text
    for end in _SENTENCE_END.finditer(text):
        head = text[: end.start()]
        if head.count("{") == head.count("}") and not _ABBREVIATION.search(head):
            bare = head
            break
    aside = _ASIDE.search(bare)
    if aside and not any(map(changes_amount, re.findall("[A-Za-z]+", aside[0]))):
        bare = bare[: aside.start()]
    return text if bare == text else unmarked(bare)


def unmarked(text: str) -> str:
    """Remove the marks around a text: blanks, emphasis, check marks, phrases such as "the answer
    is", unpaired brackets and quotes."""
    if _PLAIN_NUMBER.fullmatch(text):
        return text
    before = ""
    while text and text != before:
        before = text
        start = 0
        while match := _START.match(text, start):
            start = match.end()
        text = _without_end(text[start:])
        while text and text[-1] in _CLOSING and _is_odd(text, text[-1]):
            text = text[:-1].removesuffix("\\").rstrip()
        text = _without_pair(text)
    return text


def _without_end(text: str) -> str:
    """Remove marks, words and a full stop from the end of a text; `a^*` is not changed."""
    bare = text.rstrip(_END_SIGNS)
    if bare.endswith(".") and not bare.endswith(".."):
        bare = bare[:-1]
    if bare.endswith("^"):
        return text
    if _MAY_END_WORDS.search(bare, max(0, len(bare) - 1)) and (
        words := _END_WORDS.search(bare, max(0, len(bare) - 40))
    ):
        bare = bare[: words.start()]
    return bare


def _is_odd(text: str, closing: str) -> bool:
    """True if the bracket or quote that ends a text is closed there but not opened in the text."""
    opening = _CLOSING[closing]
    if text[-2:-1] == "\\":  # \} closes \{
        return text.count("\\" + closing) > text.count("\\" + opening)
    if opening == closing:
        return text.count(closing) % 2 == 1
    if closing in ")]":  # of [1, 2) and (1, 2]
        return sum(map(text.count, ")]")) > sum(map(text.count, "(["))
    return text.count(closing) > text.count(opening)


def _without_pair(text: str) -> str:
    """Remove quotes around the whole text, or an emphasis mark at its start that is not closed."""
    if text[:1].isalnum():
        return text
    for opening, closing in _QUOTES:
        inside = text[1:-1]
        is_quoted = text[:1] == opening and text[-1:] == closing and len(text) > 2
        if is_quoted and opening not in inside and closing not in inside:
            return inside
    for mark in _PAIRS:
        if text.startswith(mark) and mark not in text[len(mark) :]:
            return text[len(mark) :]
    return text


TAIL_CHARS = 4_000

# Special tokens of common chat templates, as text. An engine that decodes without special tokens
# leaves the role name of a ChatML turn attached to the text before it ("Answer: 8user\n"): the
# second pattern finds that.
_MARKER = re.compile(
    r"<(?:\|(?:im_start|im_end|endoftext|eot_id|start_header_id|end_header_id"
    r"|begin_of_text|user|assistant|system|end)\|>"
    r"|/?s>|(?:start|end)_of_turn>|[｜]User[｜]>|[｜]Assistant[｜]>)|\[/?INST\]"
)
_GLUED = r"(?<![^\n0-9.!?)\]}$*\"'>]%s)"  # to the end of a sentence or formula: no power-user
_BARE_ROLE = re.compile(
    rf"(?:{'|'.join(role + _GLUED % role for role in ('user', 'assistant', 'system'))})[ \t]*\n"
)

# NFKC would turn these into plain letters.
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
# Between the word "answer" and any answer: a colon or the like. Between the word and a number also
# a dash, or only blanks, brackets and marks; a sign after these belongs to the number.
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
    """An answer as a response states it."""

    text: str  # the answer's text, with marks and comments
    # from \boxed{} or <answer></answer>: the whole content is the answer; otherwise the text runs
    # to the end of its line
    boxed: bool

    @property
    def bare(self) -> str:
        """The answer without marks, and without comments if it runs to the end of a line."""
        return unmarked(self.text) if self.boxed else bare_answer(self.text)


def visible_text(text: str) -> str:
    """The response up to the first marker of a chat template, without turns of other speakers."""
    marker = _MARKER.search(text)
    text = text[: marker.start()] if marker else text
    role = _BARE_ROLE.search(text)
    return text[: role.start()] if role else text


def answer_tail(text: str) -> str:
    """The last 4,000 visible characters, normalised by `fold`."""
    return fold(visible_text(text)[-TAIL_CHARS:])


def fold(text: str) -> str:
    """Normalise to NFKC, with U+2212 as '-'. Exponents get '^', subscripts '_' and vulgar fractions
    a blank before them, so that they do not join the digits before."""
    if text.isascii():
        return text
    spaced = ""
    for sign, characters in groupby(text.translate(_SETS), key=_script):
        run = "".join(characters)
        if sign in ("^", "_"):
            spaced += sign + (run if len(run) == 1 else f"{{{run}}}")
        else:
            spaced += "".join(sign + character for character in run) if sign else run
    normal = unicodedata.normalize("NFKC", spaced)
    return normal.replace("\N{MINUS SIGN}", "-").replace("\N{FRACTION SLASH}", "/")


def _script(character: str) -> str:
    """The sign to insert before a character; empty for ordinary ones."""
    decomposition = "" if character.isascii() else unicodedata.decomposition(character)
    signs = {"<super>": "^", "<sub>": "_", "<fraction>": " ", "<circle>": " "}
    return signs.get(decomposition.partition(" ")[0], "")


def last_boxed(text: str) -> FinalAnswer | None:
    r"""The content of the balanced \boxed{} that opens last, or the text after a later \boxed
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
    r"""Find the answer in the tail of a response: the last \boxed{}, else the last
    <answer></answer>, else the last "Answer:" line, else the last "answer is" or "####". None if
    there is none."""
    for text in thought_last(tail):
        if (boxed := last_boxed(text)) is not None:
            return boxed
        if tagged := _TAGGED.findall(text):
            return FinalAnswer(text=tagged[-1].strip(), boxed=True)
        for pattern in (_LINE, _SENTENCE, _HASHES):
            stated = [line["value"] for line in pattern.finditer(text) if line["value"].strip()]
            if stated:
                return FinalAnswer(text=stated[-1].strip(), boxed=False)
    return None


def thought_last(text: str) -> tuple[str, ...]:
    """The texts to search in turn: the text after the last </think>, then the whole text."""
    return tuple(dict.fromkeys((text.rpartition("</think>")[2], text)))
