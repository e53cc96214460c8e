r"""Compares closed forms, as functions, and equations by their values at secret points.

    texts -> closed forms -> rational? one remainder (`exact_arithmetic`)
    -> numbers of 130 digits at points drawn anew in every process -> equal?

Points have both signs and are random to 130 digits, so the chance that two different analytic forms
agree at them is negligible. Forms with kinks, such as `|x|`, are also compared in every quadrant
and far from zero. Numbers are compared to 84 digits relative to their size, so 10^{-34} is not 0. A
point at which one side is not real does not count: `\ln x^2` equals `2\ln x` where both are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from random import SystemRandom

from tasks.rewards.maths.bounded_arithmetic import BITS, Number, OutsideError, context, is_real
from tasks.rewards.maths.closed_form import ClosedForm, read_closed_form

# Starts of the windows from which the values of letters are drawn, for letters at even and at odd
# places of the expression's alphabet. The windows are small, so that no kink at a simple number or
# multiple of pi lies in one, and every process draws on the same side of it. The numbers neither
# vanish nor overflow in high powers.
NEAR = ((0.567, 0.567), (1.021, 1.021), (-0.881, -0.881), (1.213, -1.213), (-1.213, 1.213))
# Windows in the other quadrants, of both signs, where \arcsin(\sin x) differs from x.
QUADRANTS = (
    (2.021, -3.753), (-2.021, 3.753), (3.753, 5.321), (-3.753, -5.321),
    (5.321, -2.021), (-5.321, 2.021),
)  # fmt: skip
# Windows far out, to be multiplied by a size beyond most kinks, where |x - 5| differs from 5 - x.
FAR = ((8.0, -1.0), (-8.0, 1.0), (1.0, 8.0), (-1.0, -8.0))
FAR_BITS = 17  # smallest binary logarithm of that size
MAX_FAR_BITS = 90  # largest one, so that 1 does not vanish beside its square
WIDTH, STEP = 2.0**-8, 0.0131  # of a window; from one letter's to the next one's
MIN_DIGITS = 6  # of a decimal that approximates another number
MIN_REAL = 2  # number of points with two real sides that is enough
TOLERANCE = context.ldexp(1, -280)  # relative; terms of a sum count down to 2^-190

Window = tuple[float, float]  # start for letters at even places, and at odd places

_DRAW = SystemRandom()


def same_function(gold: str, answer: str) -> bool | None:
    """True if two expressions are equal wherever both are real; None if one cannot be read or no
    point can be evaluated."""
    if gold == answer and read_closed_form(gold) is not None:
        return True
    wanted = read_closed_form(gold)
    given = read_closed_form(answer)
    if wanted is None or given is None:
        return None
    if wanted.exact is not None and given.exact is not None:
        return wanted.exact == given.exact
    is_complex = wanted.is_complex or given.is_complex
    num_pairs = num_real = 0
    is_same = True
    for left, right in _pairs(wanted, given):
        are_real = is_real(left) and is_real(right)
        num_pairs, num_real = num_pairs + 1, num_real + are_real
        if not close(left, right):
            if are_real or is_complex:
                return False
            is_same = False
    return is_same or num_real >= MIN_REAL if num_pairs else None


def same_equation(gold: tuple[str, str], answer: tuple[str, str], *, signed: bool) -> bool | None:
    """True if two equations are equivalent: left minus right side of one is a constant multiple of
    the other's, a positive one if `signed`. None if that cannot be decided."""
    wanted, given = (read_closed_form(f"({left})-({right})") for left, right in (gold, answer))
    if wanted is None or given is None:
        return None
    ratios: list[Number] = []
    for left, right in _pairs(wanted, given):
        if left == 0 or right == 0:
            return False
        ratios.append(left / right)
    if len(ratios) <= MIN_REAL:
        return None
    if not all(close(ratio, ratios[0]) for ratio in ratios):
        return False
    return not signed or (is_real(ratios[0]) and ratios[0] > 0)


def close(left: Number, right: Number) -> bool:
    """True if two numbers are equal up to rounding (TOLERANCE)."""
    difference = context.fabs(left - right)
    return bool(difference <= TOLERANCE * max(context.fabs(left), context.fabs(right)))


def close_to_decimal(value: Number, decimal: str) -> bool:
    """True if a decimal of six digits or more is the number `value`, rounded or truncated."""
    places = len(decimal.partition(".")[2])
    digits = decimal.lstrip("-0.").replace(".", "")
    distance = context.fabs(value - context.mpf(decimal))
    return len(digits) >= MIN_DIGITS and bool(distance < context.mpf(10) ** -places)


def constant_value(text: str) -> Number | None:
    """The value of an expression; None if it has letters, cannot be read, or is not real."""
    form = read_closed_form(text)
    if form is None or form.letters:
        return None
    try:
        value = form.value({})
    except OutsideError:
        return None
    return value if is_real(value) else None


def _pairs(wanted: ClosedForm, given: ClosedForm) -> Iterator[tuple[Number, Number]]:
    """Yield both values at every point that has both; at a single point without letters."""
    letters = sorted(wanted.letters | given.letters)
    has_kinks = wanted.has_kinks or given.has_kinks
    reach = max(wanted.reach, given.reach)
    for starts in _windows(reach if has_kinks else None) if letters else NEAR[:1]:
        point = {letter: _coordinate(place, starts) for place, letter in enumerate(letters)}
        try:
            yield wanted.value(point), given.value(point)
        except OutsideError:
            continue


def _windows(reach: int | None) -> tuple[Window, ...]:
    """Windows to draw points from. reach: binary digits of the largest constant of forms with
    kinks; None for others."""
    if reach is None:
        return NEAR
    sizes = {FAR_BITS, min(max(2 * reach + 4, FAR_BITS), MAX_FAR_BITS)}
    far = [(even * 2.0**bits, odd * 2.0**bits) for bits in sorted(sizes) for even, odd in FAR]
    return (*NEAR, *QUADRANTS, *far)


@lru_cache(maxsize=4096)
def _coordinate(place: int, starts: Window) -> Number:
    """The coordinate of the letter at this place, drawn from the window once per process."""
    start = starts[place % 2]
    distance = place * STEP + WIDTH * context.ldexp(_DRAW.getrandbits(BITS), -BITS)
    return context.mpf(start) + (distance if start > 0 else -distance)
