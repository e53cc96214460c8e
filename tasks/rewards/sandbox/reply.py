"""What came of a command to a candidate, and how its messages are read by those that it cannot be trusted by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from tasks.rewards.frames import Json

MAX_REPLY_BYTES = 256 << 10
Kind = Literal["value", "raised", "ask", "memory", "exited", "timeout", "died", "too_long", "forged", "not_run", "unconfined"]
GOES_ON: frozenset[Kind] = frozenset({"value", "raised", "ask"})  # after these the program still runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of one command, and how long it took by the host's clock. All but `kind` and `wall_s` may be invented."""

    kind: Kind  # how it ended
    value: Json = None  # a result as `plain_values` writes it; the exception's name of "raised"
    detail: str = ""  # the exception's message, the signal of "died"
    stdout: str | None = ""  # of a whole program: what it printed, None if that was too much
    wall_s: float = 0.0  # seconds


def read_reply(body: bytes) -> Reply:
    """A candidate's message: only known shapes pass."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return Reply(kind="forged")
    match message:
        case {"value": value}:
            return Reply(kind="value", value=value)
        case {"raised": str() as name, "message": str() as words}:
            return Reply(kind="raised", value=name[:80], detail=words[:200])
        case {"ask": {"arguments": arguments, "named": named}}:
            return Reply(kind="ask", value={"arguments": arguments, "named": named})
        case {"memory": True}:
            return Reply(kind="memory")
        case {"exited": True}:
            return Reply(kind="exited")
        case {"unconfined": str() as why}:
            return Reply(kind="unconfined", detail=why[:200])
        case _:
            return Reply(kind="forged")
