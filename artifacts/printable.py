"""Text that a model or an environment wrote, made fit for a terminal and a page."""

from __future__ import annotations

MOST_CHARACTERS = 600
MOST_LINES = 20


def printable(text: str) -> str:
    """The text with escapes for whatever is no visible character, line ends aside; a long one is
    cut, and says by how much."""
    kept = "\n".join(text[:MOST_CHARACTERS].split("\n")[:MOST_LINES])
    shown = "".join(_visible(character) for character in kept)
    left = len(text) - len(kept)
    return f"{shown} … {left:,} more characters" if left else shown


def _visible(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
