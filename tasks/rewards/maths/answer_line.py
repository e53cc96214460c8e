r"""What an answer says without what stands around it: emphasis, check marks, phrases, comments.

    "**x+1** ✓. I hope it is correct." -> "x+1"        "$42$, I think" -> "$42$"

Only what is listed here is taken away, and only from the ends: the rest is the answer, whole.
"""

from __future__ import annotations

import re

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
_NUMBER = re.compile(r"[-+]?\\?\$?[0-9](?:[0-9,.]*[0-9])?")  # as most answers are
_PAIRS = ("**", "__", "*", "`")
_QUOTES = (('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("«", "»"), ("<", ">"))
_CLOSING = {")": "(", "]": "[", "}": "{", ">": "<", '"': '"', "”": "“"}
# What ends with a full stop and no sentence: "sq. ft.", "p.m.", "Mr. Smith", the choice "B. 12".
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
    """The answer that a line states: up to the end of its sentence or to a comment on it."""
    text = unmarked(line)
    bare = _without_comment(text)
    return text if bare == text else unmarked(bare)


def unmarked(text: str) -> str:
    """A text without marks around it: all of it is meant."""
    if _NUMBER.fullmatch(text):
        return text
    before = ""
    while text and text != before:
        before = text
        text = _without_pair(_without_ends(text))
    return text


def _without_ends(text: str) -> str:
    start = 0
    while match := _START.match(text, start):
        start = match.end()
    return _without_closing(_without_end(text[start:]))


def _without_end(text: str) -> str:
    """A text without marks, words and the full stop at its end; `a^*` keeps its own."""
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


def _without_closing(text: str) -> str:
    """A text without brackets and quotes at its end that were opened before it began."""
    while text and text[-1] in _CLOSING and _is_odd(text, text[-1]):
        text = text[:-1].removesuffix("\\").rstrip()
    return text


def _is_odd(text: str, closing: str) -> bool:
    opening = _CLOSING[closing]
    if text[-2:-1] == "\\":  # \} closes \{
        return text.count("\\" + closing) > text.count("\\" + opening)
    if opening == closing:
        return text.count(closing) % 2 == 1
    if closing in ")]":  # of [1, 2) and (1, 2]
        return sum(map(text.count, ")]")) > sum(map(text.count, "(["))
    return text.count(closing) > text.count(opening)


def _without_pair(text: str) -> str:
    """A text without quotes or emphasis around the whole of it, or emphasis that is never ended."""
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


def _without_comment(line: str) -> str:
    if _NUMBER.fullmatch(line):
        return line
    for end in _SENTENCE_END.finditer(line):
        head = line[: end.start()]
        if head.count("{") == head.count("}") and not _ABBREVIATION.search(head):
            line = head
            break
    aside = _ASIDE.search(line)
    if aside and not any(map(changes_amount, re.findall("[A-Za-z]+", aside[0]))):
        line = line[: aside.start()]
    return line
