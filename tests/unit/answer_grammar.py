r"""A grammar of answers: for every form its spellings, which are one answer, and its near misses.

    seed -> integers, ..., choices -> (gold, answer, right or wrong) -> phrasings with marks

Every spelling of an answer is asked for every other one, so that each is the gold once; a near miss
is asked for every spelling and is the gold for each, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations, product
from random import Random

# Of one answer its spellings, and answers that are close to it.
Answer = tuple[list[str], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A gold and an answer to it."""

    form: str  # of the answer
    gold: str  # as a data set has it
    answer: str  # bare
    text: str  # the response that states it
    is_right: bool  # worth 1


PHRASINGS = (
    r"\boxed{%s}", r"\boxed{%s} ✓", r"So the answer is $\boxed{%s}$.", r"\fbox{%s}",
    r"\boxed{\boxed{%s}}", "<answer>%s</answer>", "<answer>**%s**</answer>",
    "<think>7?</think> Answer: %s", "Answer: %s", "**Answer: %s**", "**Answer:** %s",
    "Answer: **%s**", "__Answer: %s__", "`Answer: %s`", "Answer: `%s`", "Answer: %s ✓",
    "Answer: %s ✅", "Answer: %s □", "Answer: %s ∎", r"Answer: $%s$ $\blacksquare$",
    "Answer: $%s$", r"Answer: \(%s\)", r"Answer: \[ %s \]", "Answer: $$%s$$", "Answer:\n$$\n%s\n$$",
    "Answer: %s.", "Answer: $%s$.", "Answer: $%s$. I hope it is correct.",
    "Final Answer: The final answer is $%s$. I hope it is correct.", "The answer is $%s$.",
    "The final answer is: $%s$", "*Answer*: %s", "# Answer: %s",
    "### Final Answer\n**Answer:** $%s$",
    "<b>Answer: %s</b>", "Answer: %s\n\nThat was for the power-user\nof the system.",
    "We ask the super-user\nAnswer: %s", "Answer = %s", "answer: %s", "ANSWER: %s",
    "Answer:\n%s", "Answer:\n\n- %s", "Answer: $%s$, as wanted", "Answer: $%s$ 🎉",
    "Answer: 3\nNo, that is wrong.\nAnswer: %s",
)  # fmt: skip


def _integer(draw: Random) -> Answer:
    n = draw.randint(1_000, 10**9)
    return (
        [f"{n}", f"{n:,}", f"{n}.0", f"+{n}", f"0{n}", f"{n:,}".replace(",", "{,}"), f"({n})",
         rf"\mathbf{{{n}}}", rf"\mathrm{{{n}}}", f"x = {n}", f"= {n}", rf"{n}\,"],
        [f"{n + 1}", f"{n - 1}", f"-{n}", f"{n}0", f"{n}.1", f"<{n}", f">{n}", rf"\le {n}",
         f"≈{n}", rf"\approx {n}", f"~{n}", f"∉{n}", f"≠{n}", f"±{n}", rf"\in {n}", f"{n}!",
         f"{n}%", f"{n}x", f"{n} or {n + 1}", f"{n}, {n + 1}", f"about {n}", f"not {n}",
         f"x < {n}", rf"x \approx {n}", rf"x \ne {n}", f"({n}, {n})", f"√{n}", f"{n}_7",
         f"{n} million", f"{n}^2", f"{n}i", rf"\not= {n}", f"∝{n}", f"≲{n}", f"≫{n}", f"∼{n}"],
    )  # fmt: skip


def _negative(draw: Random) -> Answer:
    n = draw.randint(1, 10**6)
    return [f"-{n}", f"−{n}", f"-0{n}", f"(-{n})", f"-{n}.00"], [f"{n}", f"-{n + 1}", f"--{n}"]


def _fraction(draw: Random) -> Answer:
    low = draw.choice((3, 7, 11, 13, 17))
    top = low * draw.randint(1, 9) + draw.randint(1, low - 1)
    k = draw.randint(2, 9)
    whole, rest = divmod(top, low)
    return (
        [rf"\frac{{{top}}}{{{low}}}", f"{top}/{low}", rf"\dfrac{{{top}}}{{{low}}}",
         rf"\frac{{{top * k}}}{{{low * k}}}", rf"{whole}\frac{{{rest}}}{{{low}}}",
         f"{whole} {rest}/{low}", rf"\mathbf{{\frac{{{top}}}{{{low}}}}}",
         rf"\displaystyle \frac{{{top}}}{{{low}}}"],
        [rf"\frac{{{low}}}{{{top}}}", f"{top + 1}/{low}", f"-{top}/{low}", f"{top}/{low + 1}",
         f"{top / low:.3f}", rf"\frac{{{top}}}{{{low}}}x", f"{whole}/{low}",
         rf"\frac{{{top}}}{{{low}}} + 10^{{-30}}"],
    )  # fmt: skip


def _decimal(draw: Random) -> Answer:
    n, part = draw.randint(1, 999), draw.randint(1, 99) * 10 + draw.randint(1, 9)
    text = f"{n}.{part:03d}"
    return (
        [text, f"{text}0", f"0{text}", rf"\frac{{{n * 1000 + part}}}{{1000}}",
         rf"{n * 1000 + part} \times 10^{{-3}}"],
        [f"{text}1", text[:-1], f"-{text}", f"{n}", text.replace(".", ""), f"≈ {text}"],
    )  # fmt: skip


def _percent(draw: Random) -> Answer:
    n = draw.randint(1, 99)
    return (
        [rf"{n}\%", f"{n}%", rf"{n}.0\%", f"{n} percent", rf"\frac{{{n}}}{{100}}", f"{n / 100}"],
        [f"{n}", rf"{n + 1}\%", rf"-{n}\%", rf"{n}0\%", f"{n / 1000}"],
    )


def _money(draw: Random) -> Answer:
    n = draw.randint(1_000, 99_999)
    return (
        [rf"\${n}", f"{n}", rf"\${n:,}", f"{n} dollars", rf"{n}\text{{ dollars}}", rf"\${n}.00"],
        [rf"\${n + 1}", rf"-\${n}", f"{n} thousand dollars", f"more than {n} dollars"],
    )


def _unit(draw: Random) -> Answer:
    n = draw.randint(2, 999)
    unit, same, other = draw.choice(
        (("cm", "centimeters", "m"), ("kg", "kilograms", "g"), ("hours", "hrs", "minutes"),
         ("m^2", "square meters", "m"), ("mph", "miles per hour", "km/h"))
    )  # fmt: skip
    return (
        [rf"{n} \text{{ {unit}}}", rf"{n}\mathrm{{~{unit}}}", rf"{n}\text{{ {same}}}"],
        [rf"{n}\text{{ {other}}}", rf"{n + 1}\text{{ {unit}}}", rf"<{n} \text{{ {unit}}}"],
    )


def _root(draw: Random) -> Answer:
    k, n = draw.randint(2, 30), draw.choice((2, 3, 5, 6, 7, 10, 11))
    return (
        [rf"{k}\sqrt{{{n}}}", rf"\sqrt{{{k * k * n}}}", rf"{k} \cdot {n}^{{1/2}}", f"{k}√{n}",
         rf"\frac{{{k * n}}}{{\sqrt{{{n}}}}}", rf"x = {k} \sqrt{{{n}}}"],
        [rf"\sqrt{{{k * n}}}", rf"{k}\sqrt{{{n + 1}}}", rf"-{k}\sqrt{{{n}}}",
         rf"{k}\sqrt[3]{{{n}}}", rf"\pm {k}\sqrt{{{n}}}", f"{k * n**0.5:.2f}",
         rf"{k}\sqrt{{{n}}}+10^{{-60}}", rf"\approx {k}\sqrt{{{n}}}", rf"< {k}\sqrt{{{n}}}"],
    )  # fmt: skip


def _power(draw: Random) -> Answer:
    b, n = draw.choice((2, 3, 5, 7)), draw.randint(150, 4_000)
    return (
        [f"{b}^{{{n}}}-1", rf"{b} \cdot {b}^{{{n - 1}}} - 1", rf"-1 + {b}^{{{n}}}",
         rf"\frac{{{b}^{{{n + 1}}}-{b}}}{{{b}}}"],
        [f"{b}^{{{n}}}+1", f"{b}^{{{n}}}", f"{b}^{{{n - 1}}}-1", f"{b}^{{{n}}}-2",
         f"{b + 1}^{{{n}}}-1"],
    )  # fmt: skip


def _digits(draw: Random) -> Answer:
    b, n = draw.choice((2, 3)), draw.randint(170, 360)
    value = b**n
    return (
        [f"{value}", f"{value:,}", f"{value}.0", f"{value:,}".replace(",", "{,}")],
        [f"{value + 1}", f"{value - 1}", f"{value}0", f"{b}^{{{n + 1}}}", f"-{value}",
         f"{value}"[:-1], f"{value + 10**9}"],
    )  # fmt: skip


def _factorial(draw: Random) -> Answer:
    n = draw.randint(60, 2_500)
    return (
        [rf"1-\frac{{1}}{{{n}!}}", f"1-1/{n}!", rf"\frac{{{n}!-1}}{{{n}!}}",
         rf"1 - \frac{{{n + 1}}}{{{n + 1}!}}"],
        [f"1-1/{n + 1}!", f"1-1/{n - 1}!", "1", f"1+1/{n}!", rf"1-\frac{{2}}{{{n}!}}"],
    )  # fmt: skip


def _binomial(draw: Random) -> Answer:
    n, k = draw.randint(20, 900), draw.randint(2, 9)
    return (
        [rf"\binom{{{n}}}{{{k}}}", rf"\dbinom{{{n}}}{{{n - k}}}", rf"\frac{{{n}!}}{{{k}!{n - k}!}}",
         rf"\frac{{{n}!}}{{{k}! \cdot ({n}-{k})!}}"],
        [rf"\binom{{{n}}}{{{k + 1}}}", rf"\binom{{{n + 1}}}{{{k}}}", rf"\frac{{{n}!}}{{{n - k}!}}"],
    )  # fmt: skip


def _circle(draw: Random) -> Answer:
    top, low = draw.randint(2, 40) * 2 + 1, draw.choice((2, 4, 8))
    return (
        [rf"\frac{{{top}\pi}}{{{low}}}", rf"\frac{{{top}}}{{{low}}}\pi", rf"{top}\pi/{low}",
         rf"{top / low}\pi", f"{top}π/{low}", rf"\frac{{\pi \cdot {top}}}{{{low}}}"],
        [rf"\frac{{{top}}}{{{low}}}", rf"\frac{{{top + 1}\pi}}{{{low}}}",
         rf"-\frac{{{top}\pi}}{{{low}}}",
         rf"\frac{{{top}e}}{{{low}}}", rf"\frac{{{top}\pi^2}}{{{low}}}", f"{3.14 * top / low:.2f}"],
    )  # fmt: skip


def _euler(draw: Random) -> Answer:
    a, b = draw.randint(2, 30), draw.randint(2, 9)
    return (
        [f"{a}e^{{{b}}}", rf"{a} \cdot e^{b}", rf"{a}\exp({b})", rf"\frac{{{a}}}{{e^{{-{b}}}}}"],
        [f"{a}e^{{{b + 1}}}", f"{a}e^{{-{b}}}", f"{a + 1}e^{{{b}}}", rf"{a}\pi^{{{b}}}"],
    )


def _interval(draw: Random) -> Answer:
    a = draw.randint(-50, 50)
    b = a + draw.randint(1, 50)
    return (
        [f"[{a}, {b})", rf"\left[{a}, {b}\right)", rf"{a} \le x < {b}", rf"{b} > x \ge {a}",
         rf"x \in [{a},{b})", rf"x \ge {a} \text{{ and }} x < {b}", f"x≥{a} ∧ x<{b}",
         rf"[{a}, \infty) \cap (-\infty, {b})"],
        [f"[{a}, {b}]", f"({a}, {b})", f"({a}, {b}]", f"[{a}, {b + 1})", f"[{b}, {a})",
         rf"x \ge {a} \text{{ or }} x < {b}", rf"\{{{a}, {b}\}}", f"{a} < x < {b}", f"x < {b}",
         rf"[{a}, \infty) \cup (-\infty, {b})"],
    )  # fmt: skip


def _union(draw: Random) -> Answer:
    a = draw.randint(-50, 50)
    b = a + draw.randint(1, 50)
    return (
        [rf"x < {a} \text{{ or }} x > {b}", rf"(-\infty, {a}) \cup ({b}, \infty)",
         f"x > {b} or x < {a}", rf"x<{a} \lor x>{b}", f"x<{a} ∨ {b}<x",
         rf"x \in ({b}, \infty) \cup (-\infty, {a})"],
        [rf"x < {a} \text{{ and }} x > {b}", rf"x<{a} \land x>{b}", f"x<{a} ∧ x>{b}",
         rf"(-\infty, {a}) \cap ({b}, \infty)", rf"x \le {a} \text{{ or }} x > {b}",
         f"{a} < x < {b}", f"({a}, {b})", rf"x > {a} \text{{ or }} x < {b}", f"x < {a}",
         rf"(-\infty, {a}] \cup [{b}, \infty)", r"\emptyset"],
    )  # fmt: skip


def _half_line(draw: Random) -> Answer:
    a = draw.randint(-50, 50)
    return (
        [rf"x \ge {a}", rf"x \geq {a}", rf"[{a}, \infty)", rf"{a} \le x", f"x≥{a}",
         rf"\{{x \mid x \ge {a}\}}"],
        [f"x > {a}", rf"x \le {a}", f"{a}", f"x = {a}", rf"({a}, \infty)", rf"x \ge {a + 1}"],
    )  # fmt: skip


def _letters_apart(draw: Random) -> Answer:
    a, b = draw.sample("abcdk", 2)
    return (
        [rf"x < {a} \text{{ or }} x > {b}", rf"x > {b} \lor x < {a}"],
        [rf"x < {a} \text{{ and }} x > {b}", rf"x < {a} \land x > {b}", f"x < {a}",
         rf"x < {b} \text{{ or }} x > {a}"],
    )  # fmt: skip


def _set(draw: Random) -> Answer:
    a, b, c = draw.sample(range(1, 99), 3)
    return (
        [rf"\{{{a}, {b}, {c}\}}", rf"\{{{c}, {a}, {b}\}}", f"{a}, {b}, {c}",
         rf"\left\{{{b},{a},{c}\right\}}", rf"{b}, {c} \text{{ and }} {a}"],
        [rf"\{{{a}, {b}\}}", rf"\{{\{{{a}\}}, \{{{b}\}}, \{{{c}\}}\}}", f"({c}, {b}, {a})",
         rf"\{{{a}, {b}, {c + 100}\}}", rf"\{{\{{{a}, {b}, {c}\}}\}}",
         rf"\{{\{{{a}, {b}\}}, {c}\}}", f"{{{{{a}}},{{{b}}},{{{c}}}}}", f"{a + b + c}",
         rf"\{{({a}, {b}), {c}\}}", rf"\{{-{a}, {b}, {c}\}}"],
    )  # fmt: skip


def _singleton(draw: Random) -> Answer:
    a = draw.randint(1, 99)
    return (
        [rf"\{{{a}\}}", f"{a}", rf"x \in \{{{a}\}}"],
        [rf"\{{\{{{a}\}}\}}", rf"\{{{a}, {a + 1}\}}", rf"\{{{a + 1}\}}", rf"\{{-{a}\}}"],
    )


def _pair(draw: Random) -> Answer:
    a, b = draw.sample(range(-40, 40), 2)
    return (
        [f"({a}, {b})", rf"\left({a},{b}\right)", rf"(x,y) = ({a},{b})",
         rf"({a}, \frac{{{2 * b}}}{{2}})"],
        [f"({b}, {a})", f"({a}, {b + 1})", f"[{a}, {b}]", rf"\{{{a}, {b}\}}", f"({a}, {b}, 0)",
         rf"(\{{{a}\}}, {b})", f"({-a - 1}, {b})"],
    )  # fmt: skip


def _points(draw: Random) -> Answer:
    a, b, c, d = draw.sample(range(1, 40), 4)
    return (
        [f"({a}, {b}), ({c}, {d})", rf"({c},{d}) \text{{ and }} ({a},{b})",
         rf"\{{({a}, {b}), ({c}, {d})\}}"],
        [f"({b}, {a}), ({c}, {d})", f"({a}, {b})", f"({a}, {d}), ({c}, {b})",
         f"{a}, {b}, {c}, {d}"],
    )  # fmt: skip


def _matrix(draw: Random) -> Answer:
    a, b, c, d = draw.sample(range(1, 40), 4)

    def matrix(*rows: tuple[int, int], kind: str = "pmatrix") -> str:
        cells = r" \\ ".join(" & ".join(map(str, row)) for row in rows)
        return rf"\begin{{{kind}}} {cells} \end{{{kind}}}"

    return (
        [matrix((a, b), (c, d)), matrix((a, b), (c, d), kind="bmatrix"),
         matrix((a, b), (c, d)).replace(" ", "")],
        [matrix((a, c), (b, d)), matrix((a, b), (c, d + 1)), matrix((b, a), (c, d)),
         matrix((a, b)), matrix((-a, b), (c, d))],
    )  # fmt: skip


def _polynomial(draw: Random) -> Answer:
    a, b, c = (draw.randint(2, 30) for _ in range(3))
    return (
        [f"{a}x^2 + {b}x - {c}", f"-{c} + {b}x + {a}x^2", f"x({a}x + {b}) - {c}",
         rf"{a} \cdot x \cdot x + {b}x - {c}", f"y = {a}x^2 + {b}x - {c}", f"{a}x²+{b}x−{c}"],
        [f"{a}x^2 + {b}x + {c}", f"{a}x^2 - {b}x - {c}", f"{a}x^3 + {b}x - {c}",
         f"{a}t^2 + {b}t - {c}", f"{a + 1}x^2 + {b}x - {c}", f"{a}x^2 + {b}x",
         f"{a}x^2 + {b}x - {c} > 0"],
    )  # fmt: skip


def _vast_polynomial(draw: Random) -> Answer:
    n = draw.randint(500, 3_000)
    return (
        [f"2^{{{n}}}x + 1", f"1 + 2 \\cdot 2^{{{n - 1}}}x",
         rf"\frac{{4^{{{n}}}x + 2^{{{n}}}}}{{2^{{{n}}}}}"],
        [f"2^{{{n}}}x", f"2^{{{n}}}x + 2", f"2^{{{n - 1}}}x + 1", f"2^{{{n}}}y + 1"],
    )  # fmt: skip


def _named(draw: Random) -> Answer:
    a, b = draw.sample(range(1, 99), 2)
    return (
        [f"x = {a}, y = {b}", f"y = {b}, x = {a}", rf"x={a} \text{{ and }} y={b}"],
        [f"x = {b}, y = {a}", f"x = {a}", f"x = {a}, y = {b + 1}", rf"x={a} \text{{ or }} y={b}"],
    )


def _plus_minus(draw: Random) -> Answer:
    a = draw.randint(2, 99)
    return (
        [rf"\pm {a}", f"±{a}", f"{a}, -{a}", rf"x = \pm {a}", rf"x = {a} \text{{ or }} x = -{a}"],
        [f"{a}", f"-{a}", rf"\pm {a + 1}", f"{a}, {a}", rf"x = {a} \land x = -{a}"],
    )


def _equation(draw: Random) -> Answer:
    a, b, c = (draw.randint(2, 30) for _ in range(3))
    return (
        [f"{a}x + {b}y = {c}", f"{c} = {b}y + {a}x", f"{a}x + {b}y - {c} = 0",
         f"{2 * a}x + {2 * b}y = {2 * c}"],
        [f"{a}x - {b}y = {c}", f"{a}x + {b}y = {c + 1}", f"{a}x + {b}y < {c}",
         f"{a}x + {b}y", rf"{a}x + {b}y \ne {c}", f"{a}x + {b}z = {c}"],
    )  # fmt: skip


def _choice(draw: Random) -> Answer:
    letter, other = draw.sample("ABCDE", 2)
    n = draw.randint(2, 99)
    return (
        [letter, f"({letter})", f"{letter}.", rf"\text{{({letter})}}", rf"\textbf{{({letter})}}",
         f"{letter})", f"Option {letter}", rf"\text{{{letter}}}"],
        [other, f"({other})", rf"\text{{({other})}}", f"{letter} or {other}", f"{other}) {n}"],
    )  # fmt: skip


def _choice_with_text(draw: Random) -> Answer:
    letter, other = draw.sample("ABCDE", 2)
    n = draw.randint(2, 99)
    return (
        [f"{letter}) {n}", f"({letter}) {n}", f"{letter}. {n}", rf"\text{{({letter}) }} {n}",
         rf"\textbf{{({letter})}}\ {n}"],
        [f"{other}) {n}", f"{letter}) {n + 1}", other, f"{n + 1}",
         f"{letter}) {n} or {other}) {n}"],
    )  # fmt: skip


def _words(draw: Random) -> Answer:
    name, other = draw.sample(("Alice", "Robert", "Monday", "triangle", "ellipse"), 2)
    return (
        [name, rf"\text{{{name}}}", name.lower(), rf"\textbf{{{name}}}", rf"\mathrm{{{name}}}"],
        [other, f"not {name}", f"{name} or {other}", f"{name}, {other}"],
    )


GRAMMAR: tuple[Callable[[Random], Answer], ...] = (
    _integer, _negative, _fraction, _decimal, _percent, _money, _unit, _root, _power, _digits,
    _factorial, _binomial, _circle, _euler, _interval, _union, _half_line, _letters_apart, _set,
    _singleton, _pair, _points, _matrix, _polynomial, _vast_polynomial, _named, _plus_minus,
    _equation, _choice, _choice_with_text, _words,
)  # fmt: skip


def pairs(seed: int, num_draws: int) -> Iterator[Pair]:
    """The pairs of some answers of every form, each in the next phrasing of a shuffled row."""
    draw = Random(seed)
    phrasings: list[str] = []
    for make, _ in product(GRAMMAR, range(num_draws)):
        spellings, near_misses = make(draw)
        right = [(*pair, True) for pair in permutations(spellings, 2)]
        missed = [*product(spellings, near_misses), *product(near_misses, spellings)]
        for gold, answer, is_right in [*right, *((*pair, False) for pair in missed)]:
            phrasings = phrasings or draw.sample(PHRASINGS, len(PHRASINGS))
            yield Pair(
                form=make.__name__.strip("_"), gold=gold, answer=answer,
                text=_stated(phrasings.pop(), answer), is_right=is_right,
            )  # fmt: skip


def _stated(phrasing: str, answer: str) -> str:
    """A phrasing with its answer; what has dollar signs needs none around it."""
    if "$" in answer:
        phrasing = phrasing.replace("$", "")
    return phrasing.replace("%s", answer).replace("..", ".")
