r"""Where brackets open and close: text is split outside them, and outer ones are peeled off."""

from __future__ import annotations

import re

_BRACKET = re.compile(r"\\(?:begin|end|langle|rangle|lfloor|lceil|rfloor|rceil|[{}])|[(\[{)\]}]")
_OPENING = frozenset(("\\begin", "\\langle", "\\lfloor", "\\lceil", "\\{", "(", "[", "{"))


def split_at(sign: re.Pattern[str], text: str) -> tuple[list[str], list[str]]:
    """The stripped pieces between the signs outside brackets, and the signs."""
    if sign.search(text) is None:
        return [text.strip()], []
    depths = depths_of(text)
    pieces: list[str] = []
    signs: list[str] = []
    start = 0
    for match in sign.finditer(text):
        if depths[match.start()] == 0:
            pieces.append(text[start : match.start()].strip())
            signs.append(match[0].strip())
            start = match.end()
    return [*pieces, text[start:].strip()], signs


def peeled(text: str) -> str:
    """Without braces, and round brackets around a single thing, that enclose all of the text."""
    text = text.strip()
    while len(text) > 1 and (text[0], text[-1]) in (("{", "}"), ("(", ")")) and text[-2:] != "\\}":
        if not _closes_at_end(text) or (text[0] == "(" and "," in text):
            return text
        text = text[1:-1].strip()
    return text


def _closes_at_end(text: str) -> bool:
    """Whether the bracket that opens the text is closed by its last character."""
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += 1 if match[0] in _OPENING else -1
        if depth <= 0:
            return match.end() == len(text)
    return False


def depths_of(text: str) -> list[int]:
    """How many brackets are open before each character; half-open intervals may mix their kinds."""
    depths = [0] * len(text)
    depth = place = 0
    for match in _BRACKET.finditer(text):
        depths[place : match.start()] = [depth] * (match.start() - place)
        is_opening = match[0] in _OPENING
        depth = depth + 1 if is_opening else max(depth - 1, 0)
        inner = depth if is_opening else depth + 1
        depths[match.start() : match.end()] = [inner] * len(match[0])
        place = match.end()
    depths[place:] = [depth] * (len(text) - place)
    return depths
