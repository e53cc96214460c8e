r"""Reads a closed form in the uniform spelling as a function of its letters: `2x\sin(x) - 1`.

    text -> tokens -> recursive descent -> ClosedForm: a function of a point

Ambiguous text is not read (None): `1/2x`, `x2`, `2 3`, `f(x)`, and words of four letters or more.
`e` is Euler's number, `i` the imaginary unit, and any other letter a variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tasks.rewards.maths import bounded_arithmetic as arithmetic
from tasks.rewards.maths.bounded_arithmetic import Evaluate, OutsideError, Value, operated

MIN_WORD_LETTERS = 4

GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|omega|eta|zeta|kappa|nu"
    r"|xi|psi|chi|Delta|Omega|Phi|ell)"
)

_TOKEN = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<letters>[A-Za-z]+)|(?P<command>\\[A-Za-z]+)"
    r"|(?P<silent>\s+)|(?P<sign>[-+*/^_(){}\[\]|!])"
)


def _split(text: str) -> list[str]:
    """The tokens of a text: numbers, single letters, commands and signs. Raises OutsideError for a
    word of four letters or more, which is no product of letters."""
    tokens: list[str] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or len(match["letters"] or "") >= MIN_WORD_LETTERS:
            raise OutsideError
        if match["letters"]:
            tokens.extend(match["letters"])
        elif not match["silent"]:
            tokens.append(match[0])
        place = match.end()
    return tokens


MAX_CHARS = 512  # in the uniform spelling, which is longer than the answer
MAX_DEPTH = 24  # of brackets and functions

_WHOLE_PARTS = re.compile(r"(?:\{[0-9]+\}|[0-9])(?:\{[0-9]+\}|[0-9])")  # of a fraction
_MINUS_ONE = (("^", "{", "-", "1", "}"), ("^", "-", "1"))
_APPLIED = frozenset("fghFGHP")  # letters that are functions if a bracket follows
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_ENDS_OF_SUM = (")", "}", "]", "")
_CONSTANTS = {"\\pi": arithmetic.PI, "e": arithmetic.E, "i": arithmetic.IMAGINARY_UNIT}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """A closed form that was read."""

    value: Evaluate  # computes the number at a point; raises OutsideError if it has none
    exact: int | None  # remainder of a rational function: two are equal if their remainders are
    letters: frozenset[str]  # its variables
    is_complex: bool  # the imaginary unit occurs
    has_kinks: bool  # absolute values, roots, broken powers or inverse trigonometry occur
    reach: int  # binary digits of its largest or smallest constant


@lru_cache(maxsize=4096)
def read_closed_form(text: str) -> ClosedForm | None:
    """Read a text in the uniform spelling; None if it is no closed form, or an ambiguous one."""
    if len(text) > MAX_CHARS:
        return None
    try:
        reader = _Reader(text)
        value = reader.sum()
        reader.expect("")
    except OutsideError:
        return None
    return ClosedForm(
        value=arithmetic.entrance(value),
        exact=value.exact.residue if value.exact else None,
        letters=frozenset(reader.letters),
        is_complex=reader.is_complex,
        has_kinks=reader.has_kinks,
        reach=reader.reach,
    )


class _Reader:
    """Recursive descent parser over tokens. Every method from `sum` on reads one kind of expression
    and returns its value; raises OutsideError for any other text."""

    def __init__(self, text: str) -> None:
        self.letters: set[str] = set()
        self.is_complex = False
        self.has_kinks = False
        self.reach = 0
        self._tokens = [*_split(text), ""]
        self._place = 0
        self._subscript_end = 0  # where the last subscript ended
        self._depth = 0
        self._num_bars = 0  # absolute values that are open
        self._num_letters = 0  # read so far

    @property
    def _next(self) -> str:  # empty at the end
        return self._tokens[self._place]

    @property
    def _last(self) -> str:
        return self._tokens[self._place - 1]

    def _is_digit_out_of_place(self) -> bool:
        """True if the next token is a number right after a letter or another number: x2, 2 3."""
        if self._next[0] not in "0123456789.":
            return False
        return self._place != self._subscript_end and self._last not in (")", "}", "]", "!")

    def _take(self) -> str:
        token = self._next
        if not token:
            raise OutsideError
        self._place += 1
        return token

    def _skip(self, *tokens: str) -> bool:
        """Move behind these tokens if they come next; returns True if they do."""
        found = self._tokens[self._place : self._place + len(tokens)] == list(tokens)
        self._place += len(tokens) if found else 0
        return found

    def expect(self, token: str) -> None:
        """Move behind this token, the end if it is empty; OutsideError if another one comes."""
        if self._next != token:
            raise OutsideError
        self._place += bool(token)

    def sum(self) -> Value:
        """Read [+-] product ([+-] product)*."""
        self._deepen()
        value = self._signed(self._product)
        while self._next in ("+", "-"):
            value = operated("+", value, self._signed(self._product))
        self._depth -= 1
        return value

    def _signed(self, read: Callable[[], Value]) -> Value:
        if self._skip("-"):
            return operated("negative", read())
        self._skip("+")
        return read()

    def _product(self) -> Value:
        """Read factors with signs or nothing between them; `1/2x` is ambiguous and raises."""
        value = self._factor()
        while not self._is_at_end_of_product():
            if self._skip("/"):
                value = operated("/", value, self._factor())
                if not (self._is_at_end_of_product() or self._next in ("*", "/")):
                    raise OutsideError
            elif self._skip("*"):
                value = operated("*", value, self._signed(self._factor))
            elif self._is_digit_out_of_place():
                raise OutsideError
            else:
                value = operated("*", value, self._factor())
        return value

    def _is_at_end_of_product(self) -> bool:
        following = self._next
        return following in ("+", "-", *_ENDS_OF_SUM) or (following == "|" and self._num_bars > 0)

    def _factor(self) -> Value:
        if self._is_function():
            return self._function(self._take())
        num_letters = self._num_letters
        value = self._powered(self._postfixed(self._base()))
        if self._num_letters == num_letters:
            self.reach = max(self.reach, arithmetic.size(value))
        return value

    def _is_function(self) -> bool:
        return self._next in arithmetic.FUNCTIONS or self._next == "\\log"

    def _powered(self, value: Value) -> Value:
        if not self._skip("^"):
            return value
        start = self._place
        exponent = self._argument()
        taken = self._tokens[start : self._place]
        is_broken = any(token in ("/", "\\frac") or "." in token for token in taken)
        self.has_kinks = self.has_kinks or is_broken
        if self._next == "^":
            raise OutsideError
        return self._postfixed(operated("^", value, exponent))

    def _postfixed(self, value: Value) -> Value:
        while self._next in arithmetic.POSTFIXES:
            value = operated(self._take(), value)
            if self._last == "!" == self._next:  # 5!! is not (5!)!
                raise OutsideError
        return value

    def _base(self) -> Value:
        token = self._take()
        if token[0] in "0123456789.":
            value = arithmetic.decimal(token)
            ahead = self._tokens[self._place + 1 : self._place + 7]
            is_mixed = token.isdigit() and self._next == "\\frac"  # 3\frac{1}{2}
            if is_mixed and _WHOLE_PARTS.match("".join(ahead)):
                return operated("+", value, self._base())
            return value
        if token in _CONSTANTS:
            self.is_complex = self.is_complex or token == "i"
            return arithmetic.constant(_CONSTANTS[token])
        if token.isalpha() or GREEK.fullmatch(token):
            return self._letter(token)
        if token in _CLOSING:
            return self._until(_CLOSING[token])
        return self._construct(token)

    def _construct(self, token: str) -> Value:
        self.has_kinks = self.has_kinks or token in ("|", "\\sqrt")
        if token == "\\frac":
            return operated("/", self._argument(), self._argument())
        if token == "\\sqrt":
            is_square = not self._skip("[")
            index = arithmetic.decimal("2") if is_square else self._until("]")
            return operated(token, self._argument(), index)
        if token == "\\binom":
            return operated(token, self._argument(), self._argument())
        if token != "|":
            raise OutsideError
        self._num_bars += 1
        value = self.sum()
        self._num_bars -= 1
        self.expect("|")
        return operated("absolute", value)

    def _until(self, close: str) -> Value:
        bars, self._num_bars = self._num_bars, 0
        value = self.sum()
        self._num_bars = bars
        self.expect(close)
        return value

    def _letter(self, token: str) -> Value:
        name = token
        if self._skip("_"):
            name += "_"
            if self._skip("{"):
                while not self._skip("}"):
                    name += self._take()
            else:
                name += self._take()
            self._subscript_end = self._place
        elif token in _APPLIED and self._next == "(":
            raise OutsideError
        self.letters.add(name)
        self._num_letters += 1
        return arithmetic.letter(name)

    def _argument(self) -> Value:
        r"""Read the argument of a command or caret: a group or a token; in `\frac12` one digit."""
        is_exponent = self._last == "^"
        if self._next in ("{", "("):
            return self._until(_CLOSING[self._take()])
        self._deepen()
        if self._skip("-"):
            value = operated("negative", self._argument())
        elif self._next.isdigit() and len(self._next) > 1 and not is_exponent:
            digit, self._tokens[self._place] = self._next[0], self._next[1:]
            value = arithmetic.decimal(digit)
        else:
            value = self._base()
        self._depth -= 1
        return value

    def _function(self, token: str) -> Value:
        r"""Read a function: `\sin(x)`, `\sin 2x`, `\sin^2 x`, `\tan^{-1} x`, `\log_2 x`."""
        self._deepen()
        is_based = token == "\\log" and self._skip("_")
        base = self._argument() if is_based else arithmetic.decimal("10")
        if any(self._skip(*tokens) for tokens in _MINUS_ONE):
            token = "\\arc" + token[1:]
        exponent = self._argument() if self._skip("^") else None
        is_bracketed = self._next in ("(", "{")
        inside = self._argument() if is_bracketed else self._bare_argument()
        if token == "\\log":
            value = operated("/", *(operated("\\ln", part) for part in (inside, base)))
        elif token in arithmetic.FUNCTIONS:
            self.has_kinks = self.has_kinks or token.startswith("\\arc")
            value = operated(token, inside)
        else:
            raise OutsideError
        self._depth -= 1
        if exponent is not None:
            return operated("^", value, exponent)
        return self._powered(value) if is_bracketed else value

    def _bare_argument(self) -> Value:
        r"""Read a function's argument without brackets: factors up to a sign or another function.
        Raises OutsideError for the ambiguous `\sin x/2` and `\sin x(y)`."""
        value = self._factor()
        ends = ("*", "/", "(")
        while not (
            self._is_at_end_of_product()
            or self._is_function()  # the next one in a product of functions
            or self._next in ends
        ):
            if self._is_digit_out_of_place():
                raise OutsideError
            value = operated("*", value, self._factor())
        if self._next in ("/", "("):
            raise OutsideError
        return value

    def _deepen(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise OutsideError
