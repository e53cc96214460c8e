r"""Exact arithmetic on rational functions of any size: numbers modulo a secret prime.

    3^{2024} - 1 ─▶ its remainder; two expressions with the same remainder are equal

Every process draws its own prime of 256 bits and a number for each letter, and reveals neither. Two
different integers, less than 2^{2^{72}} apart, have the same remainder with a chance below 2^-170;
rational functions likewise. No digit is ever rounded away. Exponents and arguments of factorials
are needed as integers, so small integers are kept beside their remainder. An expression that is not
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
        if pow(2, number - 1, number) == 1 and _is_prime(number):
            return number


_PRIME = _drawn_prime()
_MINUS_ONE = Exact(_PRIME - 1, -1)


@lru_cache(maxsize=4096)
def decimal(text: str) -> Exact:
    """The exact value of a decimal number, such as "12.5"."""
    whole, _, part = text.partition(".")
    number = int(whole + part or "0")
    shift = pow(10, -len(part), _PRIME) if part else 1
    return Exact(number * shift % _PRIME, None if part.strip("0") else _kept(int(whole or "0")))


@lru_cache(maxsize=4096)
def letter(name: str) -> Exact:
    """The exact value of a letter: the number that this process has drawn for it."""
    digest = blake2b(name.encode(), key=_KEY, digest_size=40).digest()
    return Exact(int.from_bytes(digest) % _PRIME, None)


def added(first: Exact | None, second: Exact | None) -> Exact | None:
    """The sum of two values."""
    if first is None or second is None:
        return None
    small = None if first.small is None or second.small is None else first.small + second.small
    return Exact((first.residue + second.residue) % _PRIME, _kept(small))


def negated(inside: Exact | None) -> Exact | None:
    """The negative of a value."""
    return multiplied(_MINUS_ONE, inside)


def multiplied(first: Exact | None, second: Exact | None) -> Exact | None:
    """The product of two values."""
    if first is None or second is None:
        return None
    small = None if first.small is None or second.small is None else first.small * second.small
    return Exact(first.residue * second.residue % _PRIME, _kept(small))


def divided(first: Exact | None, second: Exact | None) -> Exact | None:
    """The quotient of two values; None if the divisor is zero."""
    if first is None or second is None or second.residue == 0:
        return None
    small = None
    if first.small is not None and second.small and first.small % second.small == 0:
        small = first.small // second.small
    return Exact(first.residue * pow(second.residue, -1, _PRIME) % _PRIME, small)


def raised(base: Exact | None, exponent: Exact | None) -> Exact | None:
    """The power of a value with a small integer exponent; None for any other exponent."""
    if base is None or exponent is None or (times := exponent.small) is None:
        return None
    if base.residue == 0 and times <= 0:
        return None
    small = None
    if base.small is not None and 0 <= times <= SMALL_BITS:
        small = base.small**times
    return Exact(pow(base.residue, times, _PRIME), _kept(small))


def chosen(top: Exact | None, low: Exact | None) -> Exact | None:
    """The binomial coefficient of two integers, at most MAX_FACTORIAL; None for others."""
    if top is None or low is None or top.small is None or low.small is None:
        return None
    if not 0 <= low.small <= top.small <= MAX_FACTORIAL:
        return None
    number = _comb(top.small, low.small)
    return Exact(number % _PRIME, _kept(number))


def factorial(inside: Exact | None) -> Exact | None:
    """The factorial of an integer, at most MAX_FACTORIAL; None for others."""
    if inside is None or inside.small is None or not 0 <= inside.small <= MAX_FACTORIAL:
        return None
    return _factorial(inside.small)


_comb = lru_cache(maxsize=256)(comb)


@lru_cache(maxsize=256)
def _factorial(number: int) -> Exact:
    product = 1
    for factor in range(2, number + 1):
        product = product * factor % _PRIME
    return Exact(product, product if number <= 20 else None)


def _kept(number: int | None) -> int | None:
    return number if number is not None and number.bit_length() <= SMALL_BITS else None
