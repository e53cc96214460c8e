"""The actions of a model with tools: one call or one answer a turn, marked by the first word.

    calc 47 * 86            python                     ```python         answer 4042
                            print(47 * 86)             print(47 * 86)
                                                       ```

No JSON and no tags, whose brackets and quotes a small model loses. A program may stand behind the
word or below it, and in a fence with or without the word, as models have learned to write one; what
follows the fence is not read. Case does not matter, nor a colon behind the word. The terse style is
for a model of a few characters: `c47t86`, `a4042`, where p, m and t are the signs.
"""

from __future__ import annotations

import re
import textwrap
from typing import Literal, NamedTuple

Tool = Literal["calculator", "python"]
Style = Literal["chat", "terse"]

MAX_PROGRAM_CHARS = 4_000
MAX_ANSWER_CHARS = 100
LINE = re.compile(r"(calc|answer)[ \t:]\s*(\S.*)", re.IGNORECASE)
PROGRAM = re.compile(r"python\b[ \t:]*\n?(.*)", re.IGNORECASE | re.DOTALL)
FENCE = re.compile(r"```(?:(?:python|py)[\d.]*)?[ \t]*\n(.*?)(?:```|\Z)", re.IGNORECASE | re.DOTALL)
TERSE_LINE = re.compile(r"([ca])([0-9pmt]+)")
TERSE_SIGNS = {"+": "p", "-": "m", "*": "t"}
TO_TERSE = str.maketrans({**TERSE_SIGNS, " ": ""})
FROM_TERSE = str.maketrans({letter: f" {sign} " for sign, letter in TERSE_SIGNS.items()})


class Action(NamedTuple):
    """The tool call or the answer in a model's text."""

    kind: Literal["calculator", "python", "answer", "invalid"]
    body: str  # the expression, the program or the answer; empty where it is invalid


INVALID = Action("invalid", "")


def read_action(text: str, style: Style) -> Action:
    """Read the tool call or the answer in a text, in time linear in its length."""
    said = text.strip()
    if style == "terse":
        found = TERSE_LINE.fullmatch(said)
        if not found or len(found[2]) > MAX_ANSWER_CHARS:
            return INVALID
        return Action("calculator" if found[1] == "c" else "answer", meant(found[2]))
    if program := _program(said):
        return program
    found = LINE.fullmatch(said)
    if not found:
        return INVALID
    if found[1].lower() == "calc":
        return Action("calculator", found[2].rstrip("=? "))
    return Action("answer", found[2]) if len(found[2]) <= MAX_ANSWER_CHARS else INVALID


def call(tool: Tool, body: str, style: Style) -> str:
    """Returns the text that calls a tool."""
    if style == "terse":
        return "c" + tersely(body)
    return f"calc {body}" if tool == "calculator" else f"python\n{body}"


def answer(number: str, style: Style) -> str:
    """Returns the text that gives an answer."""
    return "a" + tersely(number) if style == "terse" else f"answer {number}"


def tersely(text: str) -> str:
    """Returns an expression or a number in the characters of the terse style."""
    return text.translate(TO_TERSE)


def meant(text: str) -> str:
    """Returns the expression that a text of the terse style stands for, its parts apart."""
    return text.translate(FROM_TERSE)


def _program(said: str) -> Action | None:
    found = PROGRAM.fullmatch(said)
    body = found[1] if found else said
    fenced = FENCE.match(body.lstrip())
    if not (found or fenced):
        return None
    program = textwrap.dedent(fenced[1] if fenced else body)
    is_fit = program.strip() and len(program) <= MAX_PROGRAM_CHARS
    return Action("python", program) if is_fit else INVALID
