"""Messages between the host and a candidate's process: commands, and replies, which the host must
not trust."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from artifacts.datasets.plain_values import check
from tasks.isolation.frames import Json, framed


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A message to a running program, with a time limit for the reply."""

    message: dict[str, Json]  # a `call`, {"statement"}, or the {"value"} or {"raised"} of an "ask"
    limit_s: float  # seconds until the reply

    @property
    def frame(self) -> bytes:
        """The message as it is sent."""
        return framed(json.dumps(self.message).encode("ascii"))

    @classmethod
    def call(
        cls, function: str, arguments: Json, named: Json, limit_s: float, *, is_exact: bool = True
    ) -> Command:
        """Make a command that calls a function; arguments, named: as `plain_values` encodes a list
        and a dict. Unless `is_exact`, a returned instance of a subclass is encoded as its base."""
        message: dict[str, Json] = {
            "function": function,
            "arguments": arguments,
            "named": named,
            "is_exact": is_exact,
        }
        return cls(message=message, limit_s=limit_s)


MAX_REPLY_BYTES = 256 << 10
Kind = Literal[
    "value", "raised", "ask", "memory", "exited", "timeout", "died", "too_long", "forged", "not_run"
]  # fmt: skip
# after these the program still runs
GOES_ON: frozenset[Kind] = frozenset({"value", "raised", "ask"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """The reply to a command, with its duration by the host's clock. The program may have forged
    all fields but `kind` and `wall_s`."""

    kind: Kind  # how the command ended
    value: Json = None  # a result as `plain_values` writes it; the exception's name of "raised"
    detail: str = ""  # the exception's message, the signal of "died"
    stdout: str | None = ""  # output of a whole program, None if it was too long
    wall_s: float = 0.0  # seconds


def read_reply(body: bytes) -> CommandReply:
    """Decode a candidate's message: known shapes with plain values pass, any other is "forged".

    Takes time linear in the bytes: values stay JSON, and no number that a program chose is hashed.
    """
    try:
        message = _DECODER.decode(body.decode("ascii"))
        match tuple(message.items()) if isinstance(message, dict) else ():
            case (("value", value),):
                check(value)
                return CommandReply(kind="value", value=value)
            case (("raised", str() as name), ("message", str() as words)):
                return CommandReply(kind="raised", value=name[:80], detail=words[:200])
            case (("ask", {"arguments": [*arguments], "named": {"dict": [*pairs]}}),):
                named = {"dict": pairs}
                check(arguments)
                check(named)
                return CommandReply(kind="ask", value={"arguments": arguments, "named": named})
            case (("memory", True),):
                return CommandReply(kind="memory")
            case (("exited", True),):
                return CommandReply(kind="exited")
    except (ValueError, RecursionError):  # no JSON, no plain value, or nested too deep
        pass
    return CommandReply(kind="forged")


def _record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Any: JSON
    """Decode a JSON object; ValueError for more than two names, or for one that occurs twice."""
    if len(pairs) > 2 or len(record := dict(pairs)) < len(pairs):
        raise ValueError("no message has such an object")
    return record


_DECODER = json.JSONDecoder(object_pairs_hook=_record)
