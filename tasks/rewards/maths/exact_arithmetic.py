r"""Exact arithmetic on rational functions of any size: numbers modulo a prime that nobody knows.

    3^{2024} - 1 ─▶ its remainder; two expressions with one remainder are the same one

Every process draws a prime of 256 bits and a number for each letter, and keeps them to itself.
Integers that differ by less than 2^{2^{72}} have the same remainder with a chance below 2^-170,
rational functions likewise: no digit is ever rounded away. Exponents and arguments of factorials
must be known themselves: they are small fractions, kept beside the remainder. Whatever is not
rational, or not within the bounds, has no exact value, None.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from math import comb
from random import SystemRandom

PRIME_BITS = 256
SMALL_BITS = 64  # of numerator and denominator of what may be an exponent
MAX_FACTORIAL = 10_000  # argument; a millisecond

_DRAW = SystemRandom()
_KEY = _DRAW.randbytes(32)


@dataclass(frozen=True, slots=True)
class Exact:
    """A rational number or function."""

    residue: int  # modulo the prime
    small: Fraction | None  # the number itself where it is one and has few digits


def _is_prime(number: int) -> bool:
    """Whether a number passes forty rounds of Miller and Rabin."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):
        power = pow(_DRAW.randrange(2, number - 1), odd, number)
        squares = (pow(power, 2**place, number) for place in range(twos))
        if power != 1 and number - 1 not in squares:
            return False
    return True


def _drawn_prime() -> int:
    while True:
        number = _DRAW.getrandbits(PRIME_BITS) | 1 << (PRIME_BITS - 1) | 1
        if pow(2, number - 1, number) == 1 and _is_prime(number):
            return number


_PRIME = _drawn_prime()
_MINUS_ONE = Exact(_PRIME - 1, Fraction(-1))


def decimal(text: str) -> Exact:
    """The number that digits stand for."""
    return _of(Fraction("0" + text))


def letter(name: str) -> Exact:
    """A letter, at the point of this process."""
    digest = blake2b(name.encode(), key=_KEY, digest_size=40).digest()
    return Exact(int.from_bytes(digest) % _PRIME, None)


def added(first: Exact | None, second: Exact | None) -> Exact | None:
    """Their sum."""
    if first is None or second is None:
        return None
    small = None if first.small is None or second.small is None else first.small + second.small
    return Exact((first.residue + second.residue) % _PRIME, _kept(small))


def negated(inside: Exact | None) -> Exact | None:
    """Minus the value."""
    return multiplied(_MINUS_ONE, inside)


def multiplied(first: Exact | None, second: Exact | None) -> Exact | None:
    """Their product."""
    if first is None or second is None:
        return None
    small = None if first.small is None or second.small is None else first.small * second.small
    return Exact(first.residue * second.residue % _PRIME, _kept(small))


def divided(first: Exact | None, second: Exact | None) -> Exact | None:
    """Their quotient."""
    return multiplied(first, raised(second, _MINUS_ONE))


def raised(base: Exact | None, exponent: Exact | None) -> Exact | None:
    """A power with a whole exponent."""
    times = _whole(exponent)
    if base is None or times is None or (base.residue == 0 and times <= 0):
        return None
    small = None
    if base.small is not None and abs(times) <= SMALL_BITS:
        small = base.small**times
    return Exact(pow(base.residue, times, _PRIME), _kept(small))


def chosen(top: Exact | None, low: Exact | None) -> Exact | None:
    """A binomial coefficient of whole numbers."""
    total, part = _whole(top), _whole(low)
    if total is None or part is None or not 0 <= part <= total <= MAX_FACTORIAL:
        return None
    return _of(Fraction(_comb(total, part)))


def factorial(inside: Exact | None) -> Exact | None:
    """The factorial of a whole number."""
    number = _whole(inside)
    if number is None or not 0 <= number <= MAX_FACTORIAL:
        return None
    return _factorial(number)


_comb = lru_cache(maxsize=256)(comb)


@lru_cache(maxsize=256)
def _factorial(number: int) -> Exact:
    product = 1
    for factor in range(2, number + 1):
        product = product * factor % _PRIME
    is_small = number <= 20
    return Exact(product, Fraction(product) if is_small else None)


def _of(number: Fraction) -> Exact:
    residue = number.numerator * pow(number.denominator, -1, _PRIME) % _PRIME
    return Exact(residue, _kept(number))


def _kept(number: Fraction | None) -> Fraction | None:
    if number is None:
        return None
    bits = max(number.numerator.bit_length(), number.denominator.bit_length())
    return number if bits <= SMALL_BITS else None


def _whole(value: Exact | None) -> int | None:
    if value is None or value.small is None or value.small.denominator != 1:
        return None
    return value.small.numerator
