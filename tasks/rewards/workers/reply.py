"""How a call of a verify worker ended: what the worker says, or its own end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from dataclasses import dataclass
from typing import Literal

from tasks.cluster.deaths import manner
from tasks.isolation.frames import Json

ENDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # they come from outside


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """How a call ended."""

    kind: Literal["value", "raised", "timeout", "memory", "died", "killed", "lost"]
    value: Json  # what the scorer returned; None for the other kinds
    detail: str  # the exception of "raised", how the worker ended, what a "lost" one did


def read_reply(frame: dict[str, Json]) -> WorkerReply:
    """What the worker says of a call."""
    if "raised" in frame:
        return WorkerReply(kind="raised", value=None, detail=str(frame["raised"]))
    if "memory" in frame:
        return WorkerReply(kind="memory", value=None, detail="out of memory")
    return WorkerReply(kind="value", value=frame.get("value"), detail="")


def cause_of_death(popen: subprocess.Popen[bytes]) -> WorkerReply:
    """The reply that the end of a worker is, once it has closed its end of the socket."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(timeout=1.0)
    code = popen.poll()
    if code == -signal.SIGXCPU:
        return WorkerReply(kind="timeout", value=None, detail="out of CPU time")
    if code == -signal.SIGKILL:
        return WorkerReply(kind="killed", value=None, detail=manner(code))
    if code is not None and -code in ENDED:
        return WorkerReply(kind="lost", value=None, detail=manner(code))
    detail = "unreadable reply" if code is None else manner(code)
    return WorkerReply(kind="died", value=None, detail=detail)
