"""Finds the program in a response: the first of its fenced blocks that may be Python.

    text after the last </think>, else the whole text ─▶ blocks
    ─▶ blocks named Python or without a name, else all blocks
    ─▶ the first that defines the question's function, else the first

Fences are those of CommonMark: three or more marks (``` or ~~~), closed by as many. Common misuses
are understood, too: a fence opened after words, or closed at the end of the last line or never.
Programs are not parsed here, because the model that wrote them could make that arbitrarily slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.rewards.maths.final_answer import thought_last

_PYTHON = re.compile(r"\W*(?:i?python|py)[\d.]*(?![\w+#])", re.IGNORECASE)
_LISTED = re.compile(r"[ \t]*(?:(?:[-*+>]|\d{1,9}[.)])[ \t]+)*")  # list items and quotations
# a line that defines the function with this name
_DEFINED = r"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{0}\b|^{0}[ \t]*="
_NAME = re.compile(r"[\w+-]*[ \t]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fence:
    """An opening fence."""

    marks: str  # three or more of one kind
    info: str  # the text after the marks
    prefix: str  # blanks or list marks before the marks, which the block's lines may share


def program_of(text: str, function: str = "") -> str:
    """The program in a response to a question about `function`. If there is no fence, the text that
    defines the function, else all the text after the thought."""
    defined = re.compile(_DEFINED.format(re.escape(function)), re.MULTILINE)
    parts = thought_last(text)
    for part in parts:
        blocks = list(_blocks(part))
        python = [program for info, program in blocks if not info or _PYTHON.match(info)]
        likely = python or [program for _, program in blocks]
        defining = [program for program in likely if function and defined.search(program)]
        if likely:
            return (defining or likely)[0]
        if function and defined.search(part):
            return part
    return parts[0]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each block: the text after its fence, such as "python", and its lines, without the fence's
    indentation."""
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    place = 0
    while place < len(lines):
        fence = _opening(lines[place])
        place += 1
        if fence is not None and (place < len(lines)):
            program, place = _within(lines, place, fence)
            yield fence.info, program


def _opening(line: str) -> _Fence | None:
    """The fence that a line opens, else None; after words at most a language name may follow it."""
    bare = line.rstrip("\r\n")
    prefix = found[0] if (found := _LISTED.match(bare)) else ""
    rest = bare[len(prefix) :]
    if rest.startswith("~~~"):
        info = rest.lstrip("~")
        return _Fence(marks="~" * (len(rest) - len(info)), info=info.strip(), prefix=prefix)
    end = rest.rfind("`") + 1
    words = rest[:end].rstrip("`")
    info = rest[end:]
    if end - len(words) < 3 or "```" in words or (words and not _NAME.fullmatch(info)):
        return None
    return _Fence(marks=rest[len(words) : end], info=info.strip(), prefix=prefix)


def _within(lines: Sequence[str], first: int, fence: _Fence) -> tuple[str, int]:
    """The program of the block that begins at line `first`, and the number of the next line."""
    depth = 0  # open fences within the block, as in a docstring
    for place in range(first, len(lines)):
        line = lines[place].rstrip()
        is_deeper = len(line) - len(line.lstrip()) > len(fence.prefix)
        marks = line.lstrip(" \t>")
        if marks.startswith(fence.marks):
            info = marks.lstrip(fence.marks[0])
            if not info and not (depth and is_deeper):
                return _shifted(lines[first:place], fence.prefix), place + 1
            if not info:
                depth -= 1
            elif is_deeper:
                depth += 1
            elif "`" not in info:  # the block was never closed, and here begins another
                return _shifted(lines[first:place], fence.prefix), place
        elif line.endswith(fence.marks) and line.count(fence.marks) == 1:
            last = line[: -len(fence.marks)]
            return _shifted([*lines[first:place], last], fence.prefix), place + 1
    return _shifted(lines[first:], fence.prefix).partition(fence.marks)[0], len(lines)


def _shifted(lines: Sequence[str], prefix: str) -> str:
    """Join lines, without their fence's prefix (or as many blanks) if all lines share it."""
    for shared in (prefix, " " * len(prefix)):
        if all(line.startswith(shared) or not line.strip(" \t\r\n>") for line in lines):
            return "".join(line.removeprefix(shared) for line in lines)
    return "".join(lines)
