"""Are two mathematical expressions equal, according to math-verify? Runs inside a verify worker only.

It may hang and may allocate without bound: never call it in a process that matters. Its own time limits (SIGALRM, whole
seconds) are off, because the parent's kill is the limit.
"""

from __future__ import annotations

from functools import lru_cache

from math_verify import parse, verify

# math-verify returns sympy objects and strings of many types, all untyped: hence list[object].


def compare(gold: str, answer: str) -> str:
    """ "equal", "different", or "bad_gold" if the gold itself is no expression."""
    wanted = parse_gold(gold)
    if not wanted:
        return "bad_gold"
    given = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
    return "equal" if verify(list(wanted), given, timeout_seconds=None) else "different"


@lru_cache(maxsize=4096)
def parse_gold(gold: str) -> tuple[object, ...]:
    """The gold's readings; empty if math-verify finds nothing but its characters."""
    readings = tuple(parse(f"${gold}$", parsing_timeout=None))
    return () if all(isinstance(reading, str) for reading in readings) else readings
