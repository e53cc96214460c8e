r"""Numbers compared exactly, in microseconds: integers, decimals, a/b and \frac{a}{b} as fractions, percent signs too.

Also says which answers are worth a symbolic check (`too_complex`, `is_unevaluated`, `is_undone`). Nothing here evaluates an expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_NUMBER_CHARS = 64
MAX_EXPRESSION_CHARS = 256
MAX_BRACE_DEPTH = 16
MAX_DIGIT_RUN = 40
MAX_TOWER = 2

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++"
_FRAC = r"\\[dt]?frac\s*(?:\{\s*(?P<top>[-+]?[0-9]++)\s*\}|(?P<top1>[0-9]))\s*(?:\{\s*(?P<low>[0-9]++)\s*\}|(?P<low1>[0-9]))"
_VALUE = re.compile(rf"(?P<sign>[-+]?)\s*(?:{_FRAC}|(?P<number>{_DIGITS})(?:\s*/\s*(?P<over>[0-9]++))?)(?P<percent>\s*\\?%)?")
# What may not follow the number that opens an answer line: more of the same number, an exponent, a quotient.
_RUNS_ON = re.compile(r"[0-9]|[.,][0-9]|[eE][-+]?[0-9]|\s*(?:/\s*[0-9]|(?:\^|\*\*)\s*[-0-9{(])")
_WRAPPERS = re.compile(r"\\[()\[\]!]|\\?\$|\{,\}|\^\s*(?:\\circ|\{\s*\\circ\s*\})|°")
_UNEVALUATED = re.compile(
    r"[+*^!÷×·]|(?<=[0-9)}])\s*[-/]\s*[0-9({\\]|[0-9]\s*[eE][-+]?[0-9]"
    r"|\\(?:times|cdot|div|ast|[dt]?binom|sqrt|int|sum|prod|lim|det|log|ln|exp|sin|cos|tan|Gamma|pm|mp|bmod|gcd|max|min)"
)
_UNDONE = re.compile(r"[0-9)}]\s*!|\\(?:int|i+nt|oint|sum|prod|lim|det|[dt]?binom|Gamma)(?![A-Za-z])")
_POWER_TOKEN = re.compile(r"\^|[{(]|[})]|-|[0-9.]+|\\[A-Za-z]+|\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactNumber:
    """A number as it was written; 42 and 42% differ."""

    value: Fraction  # exact
    percent: bool  # a percent sign follows


def plain(text: str) -> str:
    r"""Without dollar signs, math delimiters, outer spaces and a final full stop; `1{,}000` becomes `1,000`."""
    return " ".join(_WRAPPERS.sub(lambda match: "," if match[0] == "{,}" else "", text).split()).rstrip(".").strip()


def exact_number(text: str) -> ExactNumber | None:
    """The number that the whole of `plain` text is; None if it is anything else, longer than 64 characters or over zero."""
    match = _VALUE.fullmatch(text) if len(text) <= MAX_NUMBER_CHARS else None
    return _value_of(match) if match else None


def leading_number(text: str) -> ExactNumber | None:
    """The number an answer line opens with ("8 apples" is 8); None if it runs on into something else ("1,0,0,0", "2^5")."""
    match = _VALUE.match(text)
    if match is None or match.end() > MAX_NUMBER_CHARS or _RUNS_ON.match(text, match.end()):
        return None
    return _value_of(match)


def _value_of(match: re.Match[str]) -> ExactNumber | None:
    top = Fraction((match["top"] or match["top1"] or match["number"]).replace(",", ""))
    low = int(match["low"] or match["low1"] or match["over"] or 1)
    if low == 0:
        return None
    return ExactNumber(value=(-top if match["sign"] == "-" else top) / low, percent=match["percent"] is not None)


def is_unevaluated(text: str) -> bool:
    r"""Whether an answer to a number question still holds an operation (`6 \times 7`, `41+1`, `1e9`): an echo, not a result."""
    return _UNEVALUATED.search(text) is not None


def is_undone(text: str) -> bool:
    r"""Whether text leaves much to be done: an integral, a sum, a product, a limit, a determinant, a binomial, a factorial."""
    return _UNDONE.search(text) is not None


def too_complex(text: str) -> bool:
    """Whether text is past what an answer needs: length, nesting, runs of digits, towers of exponents."""
    if len(text) > MAX_EXPRESSION_CHARS or re.search(rf"[0-9]{{{MAX_DIGIT_RUN + 1}}}", text):
        return True
    return _brace_depth(text) > MAX_BRACE_DEPTH or _is_tower(text.replace("**", "^"))


def _is_tower(text: str) -> bool:
    """Whether exponents stand three high, or two high over plain numbers: 10^{10^{10}} is, e^{x^2} and x^2 y^3 are not."""
    opened: list[tuple[int, int]] = []  # floor and run to return to when a bracket closes
    floor = run = 0  # exponents around the current bracket, and stacked within it
    raised = over_number = False  # a caret was just read; its base is a number
    atom = ""
    for token in _POWER_TOKEN.findall(text):
        if token == "^":
            run, raised, over_number = run + 1, True, atom[:1].isdigit()
        elif token in "{(":
            opened.append((floor, run if raised else 0))
            floor, run, raised = floor + (run if raised else 0), 0, False
        elif token in "})":
            floor, run = opened.pop() if opened else (0, 0)
        elif token != "-" or not raised:
            run = run if raised else 0
            if floor + run > MAX_TOWER or (over_number and floor + run == MAX_TOWER and token[0].isdigit()):
                return True
            raised, over_number, atom = False, False, token
    return False


def _brace_depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
    return deepest
