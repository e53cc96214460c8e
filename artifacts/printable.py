"""Text of a model, an environment or an exception, made safe to show: escapes stand for every
character that is not printable."""

from __future__ import annotations

MAX_CHARACTERS = 600
MAX_LINES = 20
LINE_CHARACTERS = 400


def printable(text: str) -> str:
    """The text for a terminal or a page, its line ends kept; a long text is cut, with the number of
    characters left out."""
    kept = "\n".join(text[:MAX_CHARACTERS].split("\n")[:MAX_LINES])
    shown = "\n".join(_visible(line) for line in kept.split("\n"))
    left = len(text) - len(kept)
    return f"{shown} … {left:,} more characters" if left else shown


def printable_line(text: str, max_chars: int = LINE_CHARACTERS) -> str:
    """The text as one line of ASCII, for logs and tables, which must not fail on surrogates; a long
    line is cut, and ends in dots."""
    words = _visible(" ".join(text.split()))
    line = words.encode("ascii", "backslashreplace").decode("ascii")
    return line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."


def _visible(line: str) -> str:
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in line
    )
