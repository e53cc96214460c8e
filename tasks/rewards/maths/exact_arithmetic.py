r"""Exact arithmetic on rational functions of any size: numbers modulo a secret prime.

    3^{2024} - 1 ─▶ its remainder; two expressions with the same remainder are equal

Every process draws its own prime of 256 bits and a number for each letter, and reveals neither. Two
different integers, less than 2^{2^{72}} apart, have the same remainder with a chance below 2^-170;
rational functions likewise. No digit is ever rounded away. Exponents and arguments of factorials
are needed as integers, so small integers are kept beside their remainder. A result that is not
rational, or not within the bounds, has no exact value: None.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from math import comb
from random import SystemRandom
from typing import NamedTuple

PRIME_BITS = 256
SMALL_BITS = 64  # largest size of integers that are kept, which may be exponents
MAX_FACTORIAL = 10_000  # argument; a millisecond

_DRAW = SystemRandom()
_KEY = _DRAW.randbytes(32)


class Exact(NamedTuple):
    """The exact value of a rational number or function."""

    residue: int  # modulo the prime
    small: int | None  # the number itself if it is an integer of at most SMALL_BITS bits


def _is_prime(number: int) -> bool:
    """True if a number passes forty rounds of the Miller-Rabin test."""
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
        if _is_prime(number):
            return number


_PRIME = _drawn_prime()


@lru_cache(maxsize=4096)
def decimal(text: str) -> Exact:
    """The exact value of a decimal number, such as "12.5"."""
    whole, _, part = text.partition(".")
    number = int(whole + part or "0")
    shift = pow(10, -len(part), _PRIME) if part else 1
    return _exact(number * shift, None if part.strip("0") else int(whole or "0"))


@lru_cache(maxsize=4096)
def letter(name: str) -> Exact:
    """The exact value of a letter: the number that this process has drawn for it."""
    digest = blake2b(name.encode(), key=_KEY, digest_size=40).digest()
    return _exact(int.from_bytes(digest), None)


def added(first: Exact, second: Exact) -> Exact:
    """The sum of two values."""
    small = None if first.small is None or second.small is None else first.small + second.small
    return _exact(first.residue + second.residue, small)


def negated(inside: Exact) -> Exact:
    """The negative of a value."""
    return _exact(-inside.residue, None if inside.small is None else -inside.small)


def multiplied(first: Exact, second: Exact) -> Exact:
    """The product of two values."""
    small = None if first.small is None or second.small is None else first.small * second.small
    return _exact(first.residue * second.residue, small)


def divided(first: Exact, second: Exact) -> Exact | None:
    """The quotient of two values; None if the divisor is zero."""
    if second.residue == 0:
        return None
    small = None
    if first.small is not None and second.small and first.small % second.small == 0:
        small = first.small // second.small
    return _exact(first.residue * pow(second.residue, -1, _PRIME), small)


def raised(base: Exact, exponent: Exact) -> Exact | None:
    """The power of a value with a small integer exponent; None for any other exponent."""
    times = exponent.small
    if times is None or (base.residue == 0 and times <= 0):
        return None
    small = None
    if base.small is not None and 0 <= times <= SMALL_BITS:
        small = base.small**times
    return _exact(pow(base.residue, times, _PRIME), small)


@lru_cache(maxsize=256)
def chosen(top: Exact, low: Exact) -> Exact | None:
    """The binomial coefficient of two integers, at most MAX_FACTORIAL; None for others."""
    if top.small is None or low.small is None or not 0 <= low.small <= top.small <= MAX_FACTORIAL:
        return None
    number = comb(top.small, low.small)
    return _exact(number, number)


@lru_cache(maxsize=256)
def factorial(inside: Exact) -> Exact | None:
    """The factorial of an integer, at most MAX_FACTORIAL; None for others."""
    if inside.small is None or not 0 <= inside.small <= MAX_FACTORIAL:
        return None
    product = 1
    for factor in range(2, inside.small + 1):
        product = product * factor % _PRIME
    return Exact(product, product if inside.small <= 20 else None)


def _exact(number: int, small: int | None) -> Exact:
    """A value by its number modulo the prime, with the integer `small` unless that is too large."""
    is_kept = small is not None and small.bit_length() <= SMALL_BITS
    return Exact(number % _PRIME, small if is_kept else None)
