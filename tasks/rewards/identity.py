r"""Are two closed forms the same function? Decided in microseconds, for the forms that everybody reads in one way.

    2x(x-1) -> tokens -> a number modulo a large prime, its letters being large fixed numbers -> the same number?

Whole numbers, decimals, letters, \pi, square roots of whole numbers, + - * / ^ with whole exponents, \frac and brackets. Different
numbers prove different functions. Equal ones prove equal functions but for a chance of degree / 2^127: a polynomial has no more roots
than its degree (Schwartz 1980), \pi is a letter because it is transcendental, and roots modulo the prime obey the rules of real ones.
The primes are safe primes: no product of small exponents is a multiple of a group's order. Left out, with None, is whatever a reader
could take otherwise: functions, units, lists, mixed numbers, `x(2)`, `1/2x`, `x^10`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

PRIMES = tuple(2**127 - offset for offset in (2721, 2901, 15729, 25149, 28641, 37245, 53781, 76845, 83745, 87069, 91509, 92061))
MAX_CHARS = 256
MAX_DEPTH = 16  # of brackets
MAX_EXPONENT = 999
MAX_RADICAND = 1_000_000
LETTERS = "abknpqruvwxyz"  # not the names of units, constants, indices and customary functions

_TOKEN = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<letter>[a-z]|\\pi(?![a-zA-Z]))|(?P<silent>\s+|\\(?:left|right)(?=[()])|\\[,;!])"
    r"|(?P<sign>\\(?:[dt]?frac|sqrt|cdot|times)(?![a-zA-Z])|[-+*/^(){}])"
)
_FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac")
_TIMES = ("*", "\\cdot", "\\times")


class _OutsideError(Exception):
    """Not a form that is decided here."""


class _NoRootError(Exception):
    """A radicand has no root modulo this prime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """An expression at one point of one field."""

    value: int  # modulo the prime
    letters: frozenset[str]  # that occur
    has_decimals: bool  # a decimal may stand for a number that it was rounded from


def same_function(gold: str, answer: str) -> bool | None:
    """Whether two expressions in `plain` form are equal wherever both are defined; None if that is not decided here.

    Forms with different letters are not decided, for a letter may be a unit; nor are decimals that differ, for they may be rounded.
    """
    for prime in PRIMES:
        try:
            wanted, given = read_closed_form(gold, prime), read_closed_form(answer, prime)
        except _NoRootError:
            continue
        if wanted is None or given is None or wanted.letters != given.letters:
            return None
        if wanted.value == given.value:
            return True
        return None if wanted.has_decimals or given.has_decimals else False
    return None


@lru_cache(maxsize=4096)
def read_closed_form(text: str, prime: int) -> ClosedForm | None:
    """Text read and evaluated; None for what is no closed form or is not defined at the point."""
    if len(text) > MAX_CHARS:
        return None
    try:
        reader = _Reader(list(_tokens(text)), prime)
        value = reader.sum()
        reader.expect("")
    except _OutsideError:
        return None
    return ClosedForm(value=value, letters=frozenset(reader.letters), has_decimals=reader.has_decimals)


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or (match["letter"] and len(match[0]) == 1 and match[0] not in LETTERS):
            raise _OutsideError
        if not match["silent"]:
            yield match[0]
        place = match.end()


class _Reader:
    """Recursive descent over tokens; every method reads one form and returns its value."""

    def __init__(self, tokens: list[str], prime: int) -> None:
        self.letters: set[str] = set()
        self.has_decimals = False
        self._tokens = [*tokens, "", ""]  # one to look ahead
        self._place = 0
        self._depth = 0
        self._prime = prime

    def expect(self, token: str) -> None:
        """Read this token, the end being an empty one."""
        if self._tokens[self._place] != token:
            raise _OutsideError
        self._place += 1

    def sum(self) -> int:
        """[+-] product ([+-] product)*, as deep as brackets may go."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _OutsideError
        total = self._signed_product()
        while self._next in ("+", "-"):
            total += self._signed_product()
        self._depth -= 1
        return total % self._prime

    def _signed_product(self) -> int:
        if self._skip("-"):
            return -self._product()
        self._skip("+")
        return self._product()

    def _product(self) -> int:
        """Factors side by side or with signs between them, and at most one `/` before the last."""
        value = self._power()
        while self._next not in ("+", "-", ")", "}", ""):
            if self._skip("/"):
                value = value * self._inverse(self._base())
                if self._next not in ("+", "-", ")", "}", ""):
                    raise _OutsideError
            elif not any(self._skip(sign) for sign in _TIMES) and self._is_ambiguous():
                raise _OutsideError
            else:
                value = value * self._power()
        return value % self._prime

    def _is_ambiguous(self) -> bool:
        r"""Whether the next factor, with no sign before it, might be read as something else: x2, 2 3, 1\frac{1}{2}, x(2), 2(3)."""
        before, after = self._tokens[self._place - 1], self._next
        if after[0].isdigit():
            return True
        if after in _FRACTIONS:
            return before[0].isdigit()
        if after != "(":
            return False
        inside, closing = self._tokens[self._place + 1 : self._place + 3]
        return closing == ")" and (before.isalpha() or before == "\\pi" or inside[:1].isdigit())

    def _power(self) -> int:
        start = self._next
        value = self._base()
        if not self._skip("^"):
            return value
        if start in _FRACTIONS or start == "\\sqrt":
            raise _OutsideError
        exponent = self._exponent()
        if self._next == "^":
            raise _OutsideError
        return pow(value if exponent >= 0 else self._inverse(value), abs(exponent), self._prime)

    def _exponent(self) -> int:
        """One digit, or a whole number in braces."""
        if not self._skip("{"):
            return self._whole(max_digits=1)
        sign = -1 if self._skip("-") else 1
        exponent = sign * self._whole(max_digits=len(str(MAX_EXPONENT)))
        self.expect("}")
        return exponent

    def _base(self) -> int:
        token = self._take()
        if token[:1].isdigit():
            return self._number(token)
        if token.isalpha() or token == "\\pi":
            self.letters.add(token)
            return _point(token)
        if token in _FRACTIONS:
            top = self._braced()
            return top * self._inverse(self._braced())
        if token == "\\sqrt":
            return self._root()
        if token != "(":
            raise _OutsideError
        value = self.sum()
        self.expect(")")
        return value

    def _braced(self) -> int:
        self.expect("{")
        value = self.sum()
        self.expect("}")
        return value

    def _number(self, text: str) -> int:
        whole, _, places = text.partition(".")
        if not places:
            return int(whole)
        self.has_decimals = True
        return int(whole + places) * self._inverse(10 ** len(places))

    def _root(self) -> int:
        self.expect("{")
        radicand = self._whole(max_digits=len(str(MAX_RADICAND)))
        self.expect("}")
        return _square_root(radicand, self._prime)

    def _whole(self, *, max_digits: int) -> int:
        token = self._take()
        if not token.isdigit() or len(token) > max_digits:
            raise _OutsideError
        return int(token)

    def _inverse(self, value: int) -> int:
        if value % self._prime == 0:
            raise _OutsideError
        return pow(value, -1, self._prime)

    @property
    def _next(self) -> str:
        return self._tokens[self._place]

    def _take(self) -> str:
        token = self._next
        self._place += 1
        if not token:
            raise _OutsideError
        return token

    def _skip(self, token: str) -> bool:
        found = self._next == token
        self._place += found
        return found


@lru_cache(maxsize=64)
def _point(letter: str) -> int:
    """The value of a letter: fixed, and of no simple relation to another's."""
    return int.from_bytes(hashlib.blake2b(letter.encode(), digest_size=15).digest())


@lru_cache(maxsize=4096)
def _square_root(radicand: int, prime: int) -> int:
    """The product of its prime factors' roots, so that roots multiply as real ones do."""
    value, factor = 1, 2
    while factor * factor <= radicand:
        if radicand % (factor * factor) == 0:
            value, radicand = value * factor, radicand // (factor * factor)
        elif radicand % factor == 0:
            value, radicand = value * _root_of_prime(factor, prime), radicand // factor
        else:
            factor += 1
    return value * (_root_of_prime(radicand, prime) if radicand > 1 else radicand) % prime


def _root_of_prime(number: int, prime: int) -> int:
    root = pow(number, (prime + 1) // 4, prime)
    if root * root % prime != number:
        raise _NoRootError
    return root
