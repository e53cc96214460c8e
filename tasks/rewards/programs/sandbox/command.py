"""What a host tells a candidate's process to do, and how that is written."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tasks.isolation.frames import Json
from tasks.rewards.programs.sandbox.candidate import LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something for a running program to do."""

    message: dict[str, Json]  # a `call`, {"statement"}, or the {"value"} or {"raised"} of an "ask"
    limit_s: float  # seconds it may take

    @classmethod
    def call(
        cls,
        function: str,
        arguments: Json,
        named: Json,
        limit_s: float,
        *,
        is_exact: bool = True,
    ) -> Command:
        """Call a function of the program; arguments as `plain_values` writes a list and a dict.

        Unless `is_exact`, what it returns of a subclass comes back as the value of its base.
        """
        message: dict[str, Json] = {
            "function": function,
            "arguments": arguments,
            "named": named,
            "is_exact": is_exact,
        }
        return cls(message=message, limit_s=limit_s)


def framed(message: dict[str, Json]) -> bytes:
    """A message as it stands in the pipe, below its length."""
    body = json.dumps(message).encode("ascii")
    return LENGTH.pack(len(body)) + body
