"""Find the program in a response: the first of its fenced blocks that may be Python.

    behind the last </think>, else all of the text ─▶ blocks
    ─▶ those named Python or not at all, else all of them
    ─▶ the first that defines the question's function, else the first

Fences are those of CommonMark (three marks or more, ``` or ~~~, closed by as many), also as models
misuse them: opened behind words, closed behind the last line or never. A program is never parsed
here: its author, the model, would choose the cost.
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
class Block:
    """A fenced block of a response."""

    info: str  # what stands behind the opening fence
    program: str  # the lines within, less the indentation that they share with the fence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fence:
    """An opening fence."""

    marks: str  # three or more of one kind
    info: str  # what stands behind them
    prefix: str  # what stands before them that the lines below may share; no words


def program_of(text: str, function: str = "") -> str:
    """The program of a response to a question about `function`; without a fence, all the text
    behind the thought."""
    defined = re.compile(_DEFINED.format(re.escape(function)), re.MULTILINE)
    parts = thought_last(text)
    for part in parts:
        blocks = list(_blocks(part))
        python = [block for block in blocks if not block.info or _PYTHON.match(block.info)]
        likely = python or blocks
        defining = [block for block in likely if function and defined.search(block.program)]
        if likely:
            return (defining or likely)[0].program
        if function and defined.search(part):
            return part
    return parts[0]


def _blocks(text: str) -> Iterator[Block]:
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    place = 0
    while place < len(lines):
        fence = _opening(lines[place])
        place += 1
        if fence is not None and (place < len(lines)):
            program, place = _within(lines, place, fence)
            yield Block(info=fence.info, program=program)


def _opening(line: str) -> _Fence | None:
    """The fence that a line opens; behind words, a fence needs the name of a language."""
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
    """The program of a block whose first line is `first`, and the number of the line after it."""
    depth = 0  # fences within, of a docstring
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
    """Lines without the prefix of their fence, or blanks in its place, where all of them share it;
    else as they are."""
    for shared in (prefix, " " * len(prefix)):
        if all(line.startswith(shared) or not line.strip(" \t\r\n>") for line in lines):
            return "".join(line.removeprefix(shared) for line in lines)
    return "".join(lines)
