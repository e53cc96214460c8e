r"""Ten thousand answers to mathematical questions of many kinds, each with the verdict that it must
get, drawn from one seed.

Half are right by construction, half are wrong in a small way; around them stands text as models
write it. Two in five are numbers against numbers. Some are hostile (`hostile_answers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from research.benchmarks.hostile_answers import ENDLESS, HOSTILE, box


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedAnswer:
    """A question's gold, a response, and what the reward must say."""

    kind: str  # family, for the figures
    gold: str  # a number or LaTeX
    text: str  # the whole response
    is_right: bool  # reward 1


Parts = tuple[str, str, str]  # gold, a right answer, a wrong one
BEFORE = (
    "",
    "We compute step by step.\n",
    "Let $x$ be 7, so \\boxed{7} is not it.\n",
    "First 3 + 4 = 7, then 7 * 2 = 14.\n\n",
    "So ",
)
AFTER = ("", ".", " as wanted.", "\n", "<|im_end|>\n<|im_start|>user\nAnd \\boxed{99}?")


def _integer(draw: Random) -> Parts:
    value = draw.randint(-(10**9), 10**9)
    return (
        str(value),
        draw.choice((f"{value}", f"{value:,}", f"{value}.0", f"${value}$")),
        str(value + draw.randint(1, 9)),
    )


def _decimal(draw: Random) -> Parts:
    value = f"{draw.randint(0, 99999)}.{draw.randint(0, 999):03d}"
    return value, f"{value}{'0' * draw.randint(0, 4)}", f"{value}1"


def _fraction(draw: Random) -> Parts:
    top = draw.randint(1, 999)
    low = draw.randint(2, 99)
    factor = draw.randint(1, 9)
    right = draw.choice(
        (f"{top * factor}/{low * factor}", f"\\frac{{{top * factor}}}{{{low * factor}}}")
    )
    return f"\\frac{{{top}}}{{{low}}}", right, f"\\dfrac{{{top + 1}}}{{{low}}}"


def _percent(draw: Random) -> Parts:
    value = draw.randint(1, 1000)
    right = draw.choice((f"{value}%", f"{value}.0\\%", f"{Decimal(value) / 100}"))
    return f"{value}\\%", right, draw.choice((f"{value}", f"{value + 1}\\%"))


def _unit(draw: Random) -> Parts:
    value = draw.randint(1, 10**6)
    unit = draw.choice(("cm", "km", "apples", "hours", "kg"))
    return str(value), f"{value} \\text{{ {unit}}}", f"{value + 1}\\text{{ {unit}}}"


def _polynomial(draw: Random) -> Parts:
    first, second, third = (draw.randint(1, 99) for _ in range(3))
    gold = f"{first}x^2 + {second}xy - {third}"
    return (
        gold,
        draw.choice(
            (f"-{third} + x({first}x + {second}y)", f"{first}x \\cdot x - {third} + {second}yx")
        ),
        f"{gold} + 1",
    )


def _quotient(draw: Random) -> Parts:
    first = draw.randint(1, 99)
    second = draw.randint(2, 99)
    return (
        f"\\frac{{x}}{{{second}}} + {first}",
        f"\\frac{{x + {first * second}}}{{{second}}}",
        f"\\frac{{x + {first}}}{{{second}}}",
    )


def _root(draw: Random) -> Parts:
    factor = draw.randint(2, 30)
    radicand = draw.choice((2, 3, 5, 6, 7, 10, 11))
    return (
        f"{factor}\\sqrt{{{radicand}}}",
        f"\\sqrt{{{factor**2 * radicand}}}",
        f"\\sqrt{{{factor * radicand}}}",
    )


def _circle(draw: Random) -> Parts:
    top = draw.randint(1, 99)
    low = draw.randint(2, 99)
    return (
        f"\\frac{{{top}\\pi}}{{{low}}}",
        f"\\frac{{{top}}}{{{low}}}\\pi",
        f"\\frac{{{top}}}{{{low}}}",
    )


def _function(draw: Random) -> Parts:
    name = draw.choice(("\\sin", "\\cos", "\\ln", "\\exp"))
    first = draw.randint(2, 99)
    second = draw.randint(1, 99)
    gold = f"{second} + {name}({first}x)"
    return gold, f"{name}({first} x) + {second}", f"{second} + {name}({first + 1}x)"


def _power(draw: Random) -> Parts:
    first = draw.randint(2, 40)
    second = draw.randint(1, 40)
    return (
        f"{second}e^{{{first}x}}",
        f"{second} \\cdot e^{{{first}x}}",
        f"{second}e^{{{first + 1}x}}",
    )


def _set(draw: Random) -> Parts:
    first, second, third = draw.sample(range(1, 1000), 3)
    return f"\\{{{first}, {second}\\}}", f"\\{{{second}, {first}\\}}", f"\\{{{first}, {third}\\}}"


def _interval(draw: Random) -> Parts:
    first = draw.randint(-99, 99)
    second = first + draw.randint(1, 99)
    return f"[{first}, {second})", f"\\left[{first}, {second}\\right)", f"[{first}, {second}]"


def _point(draw: Random) -> Parts:
    first, second, third = (draw.randint(1, 999) for _ in range(3))
    return (
        f"({first}, {second}, {third})",
        f"({first},{second},{third})",
        f"({first}, {third + 1}, {second})",
    )


def _unknown_function(draw: Random) -> Parts:
    first = draw.randint(1, 99)
    second = draw.randint(2, 99)
    return f"f({second}x) + {first}", f"{first} + f({second}x)", f"f({second}x) - {first}"


def _equation(draw: Random) -> Parts:
    slope = draw.randint(2, 99)
    start = draw.randint(1, 99)
    return f"y = {slope}x + {start}", f"y = {start} + {slope}x", f"y = {slope}x - {start}"


# Name, share in percent, generator.
KINDS: tuple[tuple[str, int, Callable[[Random], Parts]], ...] = (
    ("integer", 17, _integer),
    ("decimal", 8, _decimal),
    ("fraction", 10, _fraction),
    ("percent", 5, _percent),
    ("unit", 8, _unit),
    ("polynomial", 7, _polynomial),
    ("quotient", 5, _quotient),
    ("root", 4, _root),
    ("circle", 3, _circle),
    ("function", 5, _function),
    ("power", 3, _power),
    ("set", 4, _set),
    ("interval", 4, _interval),
    ("point", 2, _point),
    ("equation", 4, _equation),
    ("unknown function", 3, _unknown_function),
    ("spoiled", 5, _integer),  # truncated, empty, very long
    ("hostile", 3, _integer),
)
NUM_ENDLESS = 4


def varied_answers(seed: int, num_answers: int) -> Iterator[VariedAnswer]:
    """Answers in the shares of `KINDS`, every hostile row among the first; the same for the same
    seed."""
    draw = Random(seed)
    certain = HOSTILE + tuple(ENDLESS[number % len(ENDLESS)] for number in range(NUM_ENDLESS))
    for row, gold, text, is_right in certain[:num_answers]:
        yield VariedAnswer(
            kind="endless" if row == "endless" else "hostile",
            gold=gold,
            text=text,
            is_right=is_right,
        )
    names, shares, _ = zip(*KINDS, strict=True)
    makers = {name: maker for name, _, maker in KINDS}
    for _ in range(num_answers - len(certain)):
        (kind,) = draw.choices(names, shares)
        yield _hostile(draw) if kind == "hostile" else _drawn(draw, kind, makers[kind](draw))


def _hostile(draw: Random) -> VariedAnswer:
    _, gold, text, is_right = draw.choice(HOSTILE)
    return VariedAnswer(
        kind="hostile", gold=gold, text=f"{draw.randint(0, 999)} {text}", is_right=is_right
    )


def _drawn(draw: Random, kind: str, parts: Parts) -> VariedAnswer:
    gold, right, wrong = parts
    is_right = draw.random() < 0.5
    answer = right if is_right else wrong
    if kind == "spoiled":
        text, is_right = _spoiled(draw, answer, is_right=is_right)
        return VariedAnswer(kind=kind, gold=gold, text=text, is_right=is_right)
    # no box before it: that would be the answer
    if kind in ("integer", "decimal", "percent") and draw.random() < 0.5:
        text = f"3 + 4 = 7.\nAnswer: {answer}{draw.choice(AFTER)}"
    else:
        text = f"{draw.choice(BEFORE)}it is {box(answer)}{draw.choice(AFTER)}"
    return VariedAnswer(kind=kind, gold=gold, text=text, is_right=is_right)


def _spoiled(draw: Random, answer: str, *, is_right: bool) -> tuple[str, bool]:
    """Cut off before the answer is whole, empty, or behind many thousands of characters."""
    cut = box(answer)[: draw.randint(0, len(answer))]
    far = "Then we add 1 and 2. " * draw.randint(500, 5_000) + box(answer)
    return draw.choice(((cut, False), ("", False), (far, is_right)))
