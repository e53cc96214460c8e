r"""Reads numbers exactly, in microseconds: decimals, fractions, powers of ten, percent signs.

Also finds answers that need no symbolic check because they are wrong in any case (`too_complex`,
`is_unevaluated`, `is_undone`). Nothing here evaluates an expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from tasks.rewards.maths.units import split_unit

MAX_CHARS = 256
MAX_BRACE_DEPTH = 16
MAX_TOWER = 2

_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]*+)?|\.[0-9]++)"
_PART = r"(?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)"  # of a fraction
_FRAC = (
    rf"\\[dt]?frac\s*(?:\{{\s*(?P<top>[-+]?\s*{_PART})\s*\}}|(?P<top1>[0-9]))"
    rf"\s*(?:\{{\s*(?P<low>[-+]?\s*{_PART})\s*\}}|(?P<low1>[0-9]))"
)
_TIMES_TEN = (
    r"(?:\s*(?:\\times|\\cdot|×|·|\*)\s*(?:10|\{10\})\s*\^\s*"
    r"(?:\{\s*(?P<power>[-+]?\s*[0-9]{1,3})\s*\}|(?P<power1>[0-9]))"
    r"|[eE](?P<power2>[-+]?[0-9]{1,3}))(?![0-9.])"
)
_REPEATING = (
    r"(?P<fixed>[0-9]*\.[0-9]*?)"
    r"(?:\\(?:overline|bar|dot)\s*\{\s*(?P<block>[0-9]{1,12})\s*\}"
    r"|(?P<dotted>[0-9]{1,6}?)(?P=dotted){2,}+\s*(?:\.\.\.|\\[lc]?dots|\\dotsc|\\dotsb))"
)
_VALUE = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?:(?P<whole>[0-9]++)\s*)?{_FRAC}"
    r"|(?P<mixed>[0-9]++)\s++(?P<mixed_top>[0-9]++)\s*/\s*(?P<mixed_low>[0-9]++)"
    rf"|{_REPEATING}|(?P<number>{_DIGITS})(?:{_TIMES_TEN}|\s*/\s*(?P<over>[0-9]++))?)"
    r"(?P<percent>\s*\\?%)?"
)
_POWER_OF_TEN = re.compile(r"\A([-+]?)\s*10\s*\^")  # a notation of a number, no open computation
_BRACED_PARTS = re.compile(r"\{\s*([0-9.]+)\s*\}\s*/\s*\{\s*([0-9.]+)\s*\}")
_WRAPPERS = re.compile(r"(?<!\\)\\[()\[\]!]|(?<!\\)\$|\{,\}")
_UNEVALUATED = re.compile(
    r"[+*^!÷×·]|(?<=[0-9)}])\s*[-/]\s*[0-9({\\]|[0-9]\s*[eE][-+]?[0-9]"
    r"|\\(?:times|cdot|div|ast|[dt]?binom|sqrt|int|sum|prod|lim|det|log|ln|exp"
    r"|sin|cos|tan|Gamma|pm|mp|bmod|gcd|max|min)"
)
_UNFINISHED = r"int|i+nt|oint|sum|prod|lim|det|[dt]?binom|Gamma"
_UNDONE = re.compile(rf"[0-9A-Za-z)}}]\s*!|\\(?:{_UNFINISHED})(?![A-Za-z])")
_POWER_TOKEN = re.compile(r"\^|[{(]|[})]|-|[0-9.]+|\\[A-Za-z]+|\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRules:
    """Rules by which two answers count as equal."""

    percent_is_hundredth: bool  # 50% equals 0.5; otherwise both must have the sign or neither
    number_wants_number: bool  # an unevaluated expression is wrong if the gold is a number


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactNumber:
    """A number as it is written; 42 and 42% differ."""

    value: Fraction  # exact
    percent: bool  # a percent sign follows

    @property
    def amount(self) -> Fraction:
        """The number's size: 50% is 1/2."""
        return self.value / 100 if self.percent else self.value


def plain(text: str) -> str:
    r"""Remove dollar signs, math delimiters, outer spaces and a final full stop from a text;
    `1{,}000` becomes `1,000`."""
    text = " ".join(_WRAPPERS.sub(lambda match: "," if match[0] == "{,}" else "", text).split())
    return text if text.endswith("..") else text.removesuffix(".").strip()


def exact_number(text: str) -> ExactNumber | None:
    """Read a whole text, as `plain` returns it, as a number. None if it is anything else, longer
    than 256 characters, or a division by zero."""
    if len(text) > MAX_CHARS:
        return None
    text = _POWER_OF_TEN.sub(r"\g<1>1*10^", _BRACED_PARTS.sub(r"\1/\2", text))
    for _ in range(MAX_BRACE_DEPTH):
        if len(text) < 2 or text[0] + text[-1] not in ("()", "{}", "[]"):
            break
        text = text[1:-1].strip()
    match = _VALUE.fullmatch(text)
    size = _size_of(match) if match else None
    if match is None or size is None:
        return None
    value = -size if match["sign"] == "-" else size
    return ExactNumber(value=value, percent=match["percent"] is not None)


def amount(text: str) -> ExactNumber | None:
    """Read an answer that is a number or a number with a unit; None for any other."""
    number = exact_number(text)
    return number if number is not None else exact_number(split_unit(text)[0])


def _size_of(match: re.Match[str]) -> Fraction | None:
    """The number without its sign; None if it is a division by zero."""
    if match["number"]:
        size = _fraction(match["number"].replace(",", ""), match["over"] or "1")
        power = match["power"] or match["power1"] or match["power2"]
        if size is None or not power:
            return size
        return size * Fraction(10) ** int(power.replace(" ", ""))
    if match["fixed"] is not None:  # 0.1666...: 0.1 and 6 over 90
        fixed, block = match["fixed"], match["block"] or match["dotted"]
        places = len(fixed) - fixed.index(".") - 1
        head = Fraction(fixed + "0" if fixed != "." else "0")
        return head + Fraction(int(block), (10 ** len(block) - 1) * 10**places)
    if match["mixed"]:
        part = _fraction(match["mixed_top"], match["mixed_low"])
        return None if part is None else int(match["mixed"]) + part
    part = _fraction(match["top"] or match["top1"], match["low"] or match["low1"])
    if part is None or not match["whole"]:
        return part
    return None if part < 0 else int(match["whole"]) + part


def _fraction(top: str, low: str) -> Fraction | None:
    divisor = Fraction(low.replace(" ", ""))
    return Fraction(top.replace(" ", "")) / divisor if divisor else None


def is_unevaluated(text: str) -> bool:
    r"""True if an answer to a question for a number still contains an operation (`6 \times 7`,
    `41+1`, `1e9`), so that it may repeat the question instead of giving the result."""
    return _UNEVALUATED.search(text) is not None


def is_undone(text: str) -> bool:
    r"""True if an integral, sum, product, limit, determinant, binomial or factorial is left."""
    return _UNDONE.search(text) is not None


def too_complex(text: str) -> bool:
    """True if the text exceeds a bound for answers: on length, nesting, or towers of exponents."""
    if len(text) > MAX_CHARS:
        return True
    depth = deepest = 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return deepest > MAX_BRACE_DEPTH or _is_tower(text.replace("**", "^"))


def _is_tower(text: str) -> bool:
    """True for exponents three high, or two high over plain numbers; not for e^{x^2}, x^2 y^3."""
    opened: list[tuple[int, int]] = []  # floor and run to return to when a bracket closes
    floor = run = 0  # exponents around the current bracket, and stacked within it
    raised = over_number = False  # a caret was just read; its base is a number
    atom = ""
    for token in _POWER_TOKEN.findall(text):
        if token == "^":
            run += 1
            raised = True
            over_number = atom[:1].isdigit()
        elif token in "{(":
            opened.append((floor, run if raised else 0))
            floor += run if raised else 0
            run = 0
            raised = False
        elif token in "})":
            floor, run = opened.pop() if opened else (0, 0)
        elif token != "-" or not raised:
            run = run if raised else 0
            if floor + run > MAX_TOWER or (
                over_number and floor + run == MAX_TOWER and token[0].isdigit()
            ):
                return True
            raised = False
            over_number = False
            atom = token
    return False


def same_number(gold: ExactNumber, answer: ExactNumber, rules: ComparisonRules) -> bool:
    """True if two numbers are equal under the rule for percent signs."""
    return gold.amount == answer.amount if rules.percent_is_hundredth else gold == answer
