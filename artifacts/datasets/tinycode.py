"""tinycode: one-line Python functions that a 135M instruction model gets right one time in three,
with six hidden tests and a plain solution, whose running times anchor the time limits. Some plain
solutions are slow and some questions invite an endless loop, so that programs reach time limits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from textwrap import indent
from typing import Any, Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.program_tests import CodeGold, call_case
from artifacts.datasets.rows import Dataset, Row, generate, question_row, shots
from artifacts.fixed_fields import Fixed

DOMAIN = "code"
NUM_TESTS = 6
LETTERS = "aeioustrnlbcdfghkmp"

Value = Any  # Any: an argument or a result, of the type that the spec says
Arguments = tuple[Value, ...]


class TinycodeConfig(FrozenConfig):
    """Small Python functions to write, with hidden tests."""

    kind: Literal["tinycode"] = Field(
        "tinycode", description="Chooses generated programming questions."
    )
    num_prompts: int = Field(4096, ge=1, description="Questions to train on.")
    heldout_prompts: int = Field(
        64, ge=0, description="Questions to evaluate on; none of them is trained."
    )
    # share of the questions whose plain solution is slow or invites an endless loop
    slow_share: Fixed[float] = 0.15

    def load(self, seed: int) -> Dataset:
        """Generate the questions for this configuration and seed."""

        def draw(rng: random.Random) -> Row:
            return _row(rng, rng.choice(SLOW_SPECS if rng.random() < self.slow_share else SPECS))

        return generate("tinycode", draw, seed, self.num_prompts, self.heldout_prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One kind of function to ask for. In its texts `{k}` stands for a number from 2 to `largest`,
    `{s}` for a number from 2 to 4, and `{c}` for a letter."""

    name: str  # with the parameters as they are named
    does: str  # what it returns or does, after "that "
    answer: Callable[..., Value]  # of the arguments by position, and of k, s or c by their names
    plain: str  # body of the function as most would write it
    draw: Callable[[random.Random], Arguments]  # arguments of one test
    uses: str = ""  # which of k, s and c
    largest: int = 99  # bound of k


def _number(rng: random.Random) -> Arguments:
    return (rng.randint(-50, 50),)


def _natural(rng: random.Random) -> Arguments:
    return (rng.randint(0, 9),)


def _two(rng: random.Random) -> Arguments:
    return (rng.randint(-20, 20), rng.randint(-20, 20))


def _list(rng: random.Random) -> Arguments:
    return ([rng.randint(-9, 9) for _ in range(rng.randint(1, 8))],)


def _word(rng: random.Random) -> Arguments:
    return ("".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 9))),)


def _palindrome(rng: random.Random) -> Arguments:
    (half,) = _word(rng)
    return (half + half[::-1] if rng.random() < 0.5 else half,)


SPECS: tuple[Spec, ...] = (
    Spec(name="add_n(x)", does="returns x plus {k}",
         draw=_number, uses="k", answer=lambda x, k: x + k, plain="return x + {k}"),
    Spec(name="minus_n(x)", does="returns x minus {k}",
         draw=_number, uses="k", answer=lambda x, k: x - k, plain="return x - {k}"),
    Spec(name="times_n(x)", does="returns x times {k}",
         draw=_number, uses="k", answer=lambda x, k: x * k, plain="return x * {k}"),
    Spec(name="square(x)", does="returns the square of x",
         draw=_number, answer=lambda x: x * x, plain="return x * x"),
    Spec(name="negate(x)", does="returns minus x",
         draw=_number, answer=lambda x: -x, plain="return -x"),
    Spec(name="remainder(x)", does="returns the remainder of x divided by {k}",
         draw=_number, uses="k", largest=9, answer=lambda x, k: x % k, plain="return x % {k}"),
    Spec(name="is_even(x)", does="returns True if x is even and False otherwise",
         draw=_number, answer=lambda x: x % 2 == 0, plain="return x % 2 == 0"),
    Spec(name="is_positive(x)", does="returns True if x is greater than 0 and False otherwise",
         draw=_number, answer=lambda x: x > 0, plain="return x > 0"),
    Spec(name="is_divisible(x)", does="returns True if x is divisible by {k} and False otherwise",
         draw=_number, uses="k", largest=5, answer=lambda x, k: x % k == 0,
         plain="return x % {k} == 0"),
    Spec(name="larger(a, b)", does="returns the larger of a and b",
         draw=_two, answer=max, plain="return max(a, b)"),
    Spec(name="difference(a, b)", does="returns a minus b",
         draw=_two, answer=lambda a, b: a - b, plain="return a - b"),
    Spec(name="clamp_low(x)", does="returns x, but at least {k}",
         draw=_number, uses="k", answer=lambda x, k: max(x, k), plain="return max(x, {k})"),
    Spec(name="absolute(x)", does="returns the absolute value of x",
         draw=_number, answer=abs, plain="return abs(x)"),
    Spec(name="power(x)", does="returns x to the power of {s}",
         draw=_number, uses="s", answer=lambda x, s: x**s, plain="return x ** {s}"),
    Spec(name="factorial(n)", does="returns the factorial of n",
         draw=_natural, answer=math.factorial,
         plain="return 1 if n == 0 else n * factorial(n - 1)"),
    Spec(name="sum_list(items)", does="returns the sum of the list items",
         draw=_list, answer=sum, plain="return sum(items)"),
    Spec(name="max_list(items)", does="returns the largest number of the list items",
         draw=_list, answer=max, plain="return max(items)"),
    Spec(name="min_list(items)", does="returns the smallest number of the list items",
         draw=_list, answer=min, plain="return min(items)"),
    Spec(name="first(items)", does="returns the first element of the list items",
         draw=_list, answer=lambda items: items[0], plain="return items[0]"),
    Spec(name="last(items)", does="returns the last element of the list items",
         draw=_list, answer=lambda items: items[-1], plain="return items[-1]"),
    Spec(name="count_over(items)",
         does="returns how many numbers of the list items are greater than {k}",
         draw=_list, uses="k", largest=6, answer=lambda items, k: sum(item > k for item in items),
         plain="return sum(item > {k} for item in items)"),
    Spec(name="double_all(items)", does="returns a list with every number of items doubled",
         draw=_list, answer=lambda items: [2 * item for item in items],
         plain="return [2 * item for item in items]"),
    Spec(name="str_len(text)", does="returns the length of the string text",
         draw=_word, answer=len, plain="return len(text)"),
    Spec(name="upper(text)", does="returns the string text in upper case",
         draw=_word, answer=str.upper, plain="return text.upper()"),
    Spec(name="repeat(text)", does="returns the string text repeated {s} times",
         draw=_word, uses="s", answer=lambda text, s: text * s, plain="return text * {s}"),
    Spec(name="reverse_str(text)", does="returns the string text reversed",
         draw=_word, answer=lambda text: text[::-1], plain="return text[::-1]"),
    Spec(name="count_letter(text)", does='returns how often the letter "{c}" is in the string text',
         draw=_word, uses="c", answer=lambda text, c: text.count(c),
         plain="return text.count('{c}')"),
    Spec(name="is_pal(text)", does="returns True if the string text is a palindrome",
         draw=_palindrome, answer=lambda text: text == text[::-1],
         plain="return text == text[::-1]"),
)  # fmt: skip


def _fibonacci(n: int) -> int:
    last, this = 0, 1
    for _ in range(n):
        last, this = this, last + this
    return last


def _pairs(items: list[int], k: int) -> int:
    """Pairs of positions whose numbers add up to k, in linear time."""
    seen: dict[int, int] = {}
    total = 0
    for item in items:
        total += seen.get(k - item, 0)
        seen[item] = seen.get(item, 0) + 1
    return total


def _long_list(rng: random.Random) -> Arguments:
    return ([rng.randint(-9, 9) for _ in range(rng.choice((10, 200, 1500)))],)


SLOW_SPECS: tuple[Spec, ...] = (
    Spec(name="fib(n)", does="returns the n-th Fibonacci number, where fib(0) is 0 and fib(1) is 1",
         draw=lambda rng: (rng.choice((2, 5, 10, 20, 26)),), answer=_fibonacci,
         plain="return n if n < 2 else fib(n - 1) + fib(n - 2)"),
    Spec(name="count_pairs(items)",
         does="returns how many pairs of different positions of the list items have "
              "numbers that add up to {k}",
         draw=_long_list, uses="k", largest=9, answer=_pairs,
         plain="return sum(a + b == {k} for i, a in enumerate(items) for b in items[:i])"),
    Spec(name="count_multiples(n)",
         does="returns how many of the numbers from 1 to n are divisible by {k}",
         draw=lambda rng: (rng.choice((10, 1000, 1_000_000)),), uses="k",
         answer=lambda n, k: n // k,
         plain="return sum(number % {k} == 0 for number in range(1, n + 1))"),
    Spec(name="halvings(n)",
         does="counts with a while loop how often n can be halved, rounding down, "
              "until it is 1, and returns the count",
         draw=lambda rng: (rng.randint(1, 5000),), answer=lambda n: n.bit_length() - 1,
         plain="count = 0\nwhile n > 1:\n    n //= 2\n    count += 1\nreturn count"),
    Spec(name="digit_sum(n)", does="adds up the digits of n with a while loop and returns the sum",
         draw=lambda rng: (rng.randint(0, 99999),), answer=lambda n: sum(map(int, str(n))),
         plain="total = 0\nwhile n > 0:\n    total += n % 10\n    n //= 10\nreturn total"),
    Spec(name="first_multiple(n)",
         does="finds with a while loop the smallest multiple of {k} that is greater "
              "than n, and returns it",
         draw=lambda rng: (rng.randint(0, 500),), uses="k", answer=lambda n, k: (n // k + 1) * k,
         plain="number = n + 1\nwhile number % {k} != 0:\n    number += 1\nreturn number"),
)  # fmt: skip


def _row(rng: random.Random, spec: Spec) -> Row:
    drawn: dict[str, Value] = {
        "k": rng.randint(2, spec.largest),
        "s": rng.randint(2, 4),
        "c": rng.choice(LETTERS),
    }
    asked = question(spec.name, spec.does.format(**drawn))
    return question_row(
        DOMAIN, asked, _gold(spec, asked, tuple((name, drawn[name]) for name in spec.uses)), _SHOTS
    )


@lru_cache(maxsize=4096)
def _gold(spec: Spec, asked: str, parameters: tuple[tuple[str, Value], ...]) -> str:
    """The tests of a question as JSON: the same for all rows, and so are their running times."""
    rng = random.Random(f"tinycode/{asked}")
    tests = [spec.draw(rng) for _ in range(NUM_TESTS)]
    cases = tuple(
        call_case(arguments, spec.answer(*arguments, **dict(parameters))) for arguments in tests
    )
    body = indent(spec.plain.format(**dict(parameters)), "    ")
    return CodeGold(
        function=spec.name.partition("(")[0], solution=f"def {spec.name}:\n{body}", cases=cases
    ).model_dump_json()


def question(name: str, does: str) -> str:
    """The text of a question that asks for a function, by its name and what it does."""
    return (
        f"Write a Python function `{name}` that {does}. Reply with only the function in a ```python"
        " code block."
    )


_COUNT_POSITIVE = """\
def count_pos(items):
    count = 0
    for item in items:
        if item > 0:
            count += 1
    return count"""
_SHOTS = shots(
    (
        question("double(x)", "returns two times x"),
        "```python\ndef double(x):\n    return x * 2\n```",
    ),
    (
        question("count_pos(items)", "returns how many numbers of the list items are positive"),
        f"```python\n{_COUNT_POSITIVE}\n```",
    ),
)
