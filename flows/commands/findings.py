"""The findings of `rollflow doctor`: what a check has found, and the cure."""

from __future__ import annotations

from typing import Literal, NamedTuple

GIB = 1024**3


class Finding(NamedTuple):
    """The result of one check."""

    level: Literal["ok", "note", "bad"]  # "bad" makes the exit status non-zero
    what: str  # the subject of the check
    found: str  # the state of this machine
    cure: str = ""  # the remedy; empty if all is well


def finding_of(
    is_ok: bool, what: str, found: str, cure: str, otherwise: Literal["note", "bad"]
) -> Finding:
    """A finding that needs its cure only if `is_ok` is false; `otherwise` is its level then."""
    return Finding("ok", what, found) if is_ok else Finding(otherwise, what, found, cure)
