r"""Splits amounts from their units: `12 \text{ cm}`, `12 cm`, `60\degree`, `12 apples`.

A unit is a known measure or a plural. Words before it may describe it (`12 red apples`), and a rate
may follow it (`12 apples per day`). Any other word is no unit, because it may change the amount:
`12 doubled`. A bare letter is no unit either: `5t` is five times t.
"""

from __future__ import annotations

import re

from tasks.rewards.maths.notation import SCALES

ALIASES = {
    "cm": "centimeter centimetre", "mm": "millimeter millimetre", "km": "kilometer kilometre",
    "m": "meter metre", "kg": "kilogram", "g": "gram", "l": "liter litre",
    "ml": "milliliter millilitre", "h": "hour hr", "min": "minute", "s": "second sec",
    "in": "inch inche", "ft": "foot feet", "mi": "mile", "yd": "yard", "lb": "pound",
    "rad": "radian", "dollar": "usd", "cm^2": "squarecentimeter sqcm squarecm",
    "m^2": "squaremeter sqm squarem", "degree": "deg",
    "km/h": "kmph kph kilometerperhour kilometersperhour", "mph": "mi/h mileperhour milesperhour",
    "m/s": "meterpersecond meterspersecond",
    "": "unit squareunit cubicunit unit^2 unit^3 unitsquare",
}  # fmt: skip
SHORT = (
    "cm", "mm", "km", "kg", "mg", "ml", "mL", "kL", "nm", "ft", "lb", "lbs", "oz", "yd", "mi", "hr",
    "hrs", "min", "mins", "sec", "secs", "mph", "kph", "Hz", "kHz", "MHz", "GHz", "kW", "kJ", "mA",
    "inch", "USD", "deg", "rad",
)  # fmt: skip
# Words for units and counted things that need not be plurals in -s.
MEASURES = frozenset(word for line in (
    *ALIASES, *ALIASES.values(), *SHORT,
    "in sq cu dm pm hz khz mhz ghz kw mw kwh kj ev mev kpa pa atm mol cal kcal bit byte",
    "newton joule watt volt ampere amp ohm kelvin celsius fahrenheit hertz pascal mole",
    "calorie gallon quart pint cup ounce ton tonne acre hectare knot teaspoon tablespoon",
    "day week month year decade century cent penny pence nickel dime euro yen rupee peso",
    "yuan krona franc ruble people person men man women woman child children student",
    "feet foot teeth mice geese fish sheep deer dice cattle way time point piece item step",
    "apple book ball coin card pen page marble seat ticket game room box bag hour",
) for word in line.lower().replace("/", " ").split())  # fmt: skip
# Words that change the amount before them.
NOT_UNITS = frozenset(word for line in (
    *SCALES, *(f"{scale}s" for scale in SCALES),
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen",
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety",
    "ones twos threes fours fives sixes sevens eights nines tens twenties thirties forties fifties",
    "dozen dozens score gross half halves third thirds quarter quarters percent percents",
    "or and nor not no is are was if than mod modulo base choose point root roots factorial",
    "squared cubed minus plus times over by divided negative more less fewer",
    "least most from to with without of when where at below above but except unless versus",
    "wrong incorrect false true between through until either neither never maybe perhaps",
    "always besides plusminus am pm pi infinity does this radius modulus",
    "double doubles triple triples twice doubled tripled halved rounded about roughly",
    "approximately approx nearly almost around circa barely exceeds under beyond",
) for word in line.split())  # fmt: skip
LETTERS = frozenset("mgshlLVAWJNKCF")  # single letters that are units if upright, as in \text{ m}
MAX_WORDS = 4
MAX_SHORT = 2  # words of at most so many letters must be known units

_NAMES = {name: unit for unit, names in ALIASES.items() for name in names.split()}
_WORD = rf"(?<![A-Za-z\\])(?:{'|'.join(SHORT)}|per|(?<=per )[a-z]{{3}}|[A-Za-z]{{4,}})(?![A-Za-z])"
_ONE = rf"(?:\\text\s*\{{[^{{}}]*\}}|{_WORD})(?:\s*\^\s*\{{?\s*[23]\s*\}}?)?"
_TEMPERATURE = r"\\degree(?: ?\\text\{[CFK]\})?"
_UNIT = re.compile(rf"(?:{_TEMPERATURE}|{_ONE}(?:(?: ?[/*] ?| ?){_ONE}|/[hs](?![A-Za-z]))*) ?\Z")
_STARTS = re.compile(r"\\degree|\\text|(?<![A-Za-z\\])[A-Za-z]{2,}")
_OF_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_READABLE = re.compile(r"[A-Za-z/^*0-9{} .-]*[A-Za-z][A-Za-z/^*0-9{} .-]*")
_PLURAL = re.compile(r"[a-z]{2,}[a-hj-rtv-z]s")  # class, radius and axis are none
_FRACTION = re.compile(
    r"(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]*teen|[a-z]*tie|hundred|thousand"
    r"|[a-z]*illion)ths?"
)
_POWER = re.compile(r"(?P<words>square|sq|cubic|cu|)(?P<unit>[a-z]+)(?P<sign>\^[23])?")
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_FACTORS = re.compile(r"[/*]|(?<![a-z])per(?![a-z])")


def split_unit(text: str) -> tuple[str, str | None]:
    """Split text in the uniform spelling into amount and unit; the text and None without one."""
    for start in _STARTS.finditer(text):
        amount, rest = text[: start.start()].strip(), text[start.start() :]
        if start[0] == "\\degree" and _OF_ANGLES.search(amount):
            continue
        is_amount = amount[-1:] in "0123456789.)}" if amount else False
        if amount and not is_amount and rest.startswith("\\text"):  # 5t \text{ miles}
            is_amount = amount[-1].isalpha() and any(map(str.isdigit, amount))
        if is_amount and _UNIT.match(rest):
            unit = _canonical(rest)
            return (text, None) if unit is None else (amount, unit)
    return text, None


def _canonical(unit: str) -> str | None:
    """The canonical name of a unit; None for words that are no unit."""
    unit = _TEXT.sub(lambda match: f" {match[1]} ", unit).replace("\\degree", "degree")
    if not _READABLE.fullmatch(unit) or not _is_unit(unit):
        return None
    if re.search("[0-9]", re.sub(r"\^\s*\{?\s*[0-9]\s*\}?", "", unit)):
        return None
    singular = re.sub(r"(?<=[A-Za-z]{2})s(?![A-Za-z])", "", re.sub(r"[ {}.]", "", unit.lower()))
    return "/".join(map(_named, _NAMES.get(singular, singular).split("/")))


def _named(factor: str) -> str:
    """The canonical name of one factor of a unit: `sqft` and `feet^2` are ft^2."""
    if factor in _NAMES:
        return _NAMES[factor]
    power = _POWER.fullmatch(factor)
    if power is None or bool(power["words"]) == bool(power["sign"]):
        return factor
    unit = _NAMES.get(power["unit"], power["unit"])
    return unit + (power["sign"] or _POWERS[power["words"]]) if unit in ALIASES else factor


def changes_amount(word: str) -> bool:
    """True if a word changes the amount before it, as in `12 doubled`."""
    return word.lower() in NOT_UNITS or _FRACTION.fullmatch(word.lower()) is not None


def _is_unit(unit: str) -> bool:
    """True if every factor ends with a word that is counted or measured, and none changes the
    amount."""
    words = [re.findall("[A-Za-z]+", factor) for factor in _FACTORS.split(unit)]
    if sum(map(len, words)) > MAX_WORDS or not all(words):
        return False
    every = [word for some in words for word in some]
    if any(map(changes_amount, every)):
        return False
    is_known = [_is_counted(word) or len(word) > MAX_SHORT for word in every]
    return all(is_known) and all(_is_counted(some[-1]) for some in words)


def _is_counted(word: str) -> bool:
    if len(word) == 1:
        return word in LETTERS
    return word.lower() in MEASURES or _PLURAL.fullmatch(word.lower()) is not None
