"""Makes text of a model, an environment or an exception fit to show: every character that is not
printable is replaced by its escape, and the tiny model's sums are written in plain signs."""

from __future__ import annotations

import re

MAX_CHARACTERS = 600
MAX_LINES = 20
LINE_CHARACTERS = 400
CHAIN_SUM = "chain_sum"  # domain of sums that the tiny model knows with letters
_LETTERED = re.compile(r"(?:[a-z]\d+){2,}")


def printable(text: str) -> str:
    """Make a text safe for a terminal or a page. Line ends are kept; a long text is cut and ends
    with the number of characters left out."""
    kept = "\n".join(text[:MAX_CHARACTERS].split("\n")[:MAX_LINES])
    shown = "\n".join(_visible(line) for line in kept.split("\n"))
    left = len(text) - len(kept)
    return f"{shown} … {left:,} more characters" if left else shown


def printable_line(text: str, max_chars: int = LINE_CHARACTERS) -> str:
    """Make a text one line of ASCII, for logs and tables, which must not fail on surrogates. A line
    longer than max_chars is cut and ends in dots."""
    words = _visible(" ".join(text.split()))
    line = words.encode("ascii", "backslashreplace").decode("ascii")
    return line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."


def plain_signs(text: str) -> str:
    """A question or a response as people write it: "a3b1c2=" becomes "3 + 1 + 2 =", and the sums of
    a response, "a3b4c6", become "3, 4, 6". Other text stays."""

    def plain(found: re.Match[str]) -> str:
        is_question = text[found.end() :] == "="
        return (" + " if is_question else ", ").join(re.findall(r"\d+", found[0]))

    shown = _LETTERED.sub(plain, text)
    return f"{shown[:-1]} =" if shown != text and shown.endswith("=") else shown


def _visible(line: str) -> str:
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in line
    )
