r"""The tokens of an expression and a place among them: numbers, single letters, commands, signs.

`2x\sin y` -> "2" "x" "\sin" "y"        words of four letters or more are no letters side by side
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tasks.rewards.maths.bounded_arithmetic import OutsideError

MIN_WORD_LETTERS = 4

GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|omega|eta|zeta|kappa|nu"
    r"|xi|psi|chi|Delta|Omega|Phi|ell)"
)

_TOKEN = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<letters>[A-Za-z]+)|(?P<command>\\[A-Za-z]+)"
    r"|(?P<silent>\s+)|(?P<sign>[-+*/^_(){}\[\]|!])"
)


class Tokens:
    """Read from left to right; every method that wants more than there is raises OutsideError."""

    def __init__(self, text: str) -> None:
        self.place = 0
        self._subscript_end = 0  # where the last one ended
        self._tokens = [*_split(text), ""]

    @property
    def next(self) -> str:
        """The token at the place, empty at the end."""
        return self._tokens[self.place]

    @property
    def last(self) -> str:
        """The token before the place."""
        return self._tokens[self.place - 1]

    def ahead(self, count: int) -> str:
        """The text of some tokens behind the next one."""
        return "".join(self._tokens[self.place + 1 : self.place + 1 + count])

    def is_broken_since(self, place: int) -> bool:
        """Whether the tokens taken from a place on hold a fraction."""
        taken = self._tokens[place : self.place]
        return any(token in ("/", "\\frac") or "." in token for token in taken)

    def is_digit_out_of_place(self) -> bool:
        """Whether a number comes right after a letter or another number: x2, 2 3."""
        if self.next[0] not in "0123456789.":
            return False
        return self.place != self._subscript_end and self.last not in (")", "}", "]", "!")

    def take(self) -> str:
        """The next token."""
        token = self.next
        if not token:
            raise OutsideError
        self.place += 1
        return token

    def take_digit(self) -> str:
        """The first digit of the number that is next."""
        number = self.next
        self._tokens[self.place] = number[1:]
        return number[0]

    def take_subscript(self) -> str:
        """A token or the characters of a group."""
        name = ""
        if not self.skip("{"):
            name = self.take()
        else:
            while not self.skip("}"):
                name += self.take()
        self._subscript_end = self.place
        return name

    def skip(self, *tokens: str) -> bool:
        """Whether these tokens come next; if so they are taken."""
        found = self._tokens[self.place : self.place + len(tokens)] == list(tokens)
        self.place += len(tokens) if found else 0
        return found

    def skip_one_of(self, sequences: Sequence[tuple[str, ...]]) -> bool:
        """Whether one of several sequences comes next; if so it is taken."""
        return any(self.skip(*tokens) for tokens in sequences)

    def expect(self, token: str) -> None:
        """Take this token, the end being an empty one."""
        if self.next != token:
            raise OutsideError
        self.place += bool(token)


def _split(text: str) -> list[str]:
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
