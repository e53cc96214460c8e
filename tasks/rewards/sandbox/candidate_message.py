"""What a candidate may say, read by those it cannot be trusted by. Runs inside the sandbox: standard library only."""

from __future__ import annotations

import json

from tasks.rewards.frames import Json

MAX_REPLY_BYTES = 256 << 10


def read_message(body: bytes) -> dict[str, Json]:
    """A candidate's message as a reply to the host: only known shapes pass."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return {"kind": "forged"}
    match message:
        case {"value": value}:
            return {"kind": "value", "value": value}
        case {"raised": str() as name, "message": str() as words}:
            return {"kind": "raised", "value": name[:80], "detail": words[:200]}
        case {"ask": {"arguments": arguments, "named": named}}:
            return {"kind": "ask", "value": {"arguments": arguments, "named": named}}
        case {"memory": True} | {"exited": True}:
            return {"kind": next(iter(message))}
        case {"unconfined": str() as why}:
            return {"kind": "unconfined", "detail": why[:200]}
        case _:
            return {"kind": "forged"}
