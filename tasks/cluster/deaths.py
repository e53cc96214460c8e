"""Describes the end of a process in one sentence: signal or exit status, last lines of output, and
what to try. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FATAL = "Fatal Python error"  # where faulthandler's report begins
NUM_TOLD = 4  # lines of a report that a sentence holds

CURES: Mapping[str, str] = {
    "SIGILL": "the processor lacks an instruction that a library uses; "
    "'rollflow doctor' names the attention path, and dtype float32 takes another",
    "SIGKILL": "most often the system ends a process like that for want of memory (dmesg says so); "
    "free some, or lower engine.kv_cache_gb or the batch",
    "SIGBUS": "most often memory under /dev/shm or a disk is full; free some",
    "SIGTERM": "somebody ended it; resume the run",
    "SIGINT": "somebody ended it; resume the run",
}
OTHER = "mend what its last lines say and resume the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a worker's process."""

    exit_code: int  # as `subprocess` counts: minus the signal's number if a signal ended it
    lines: tuple[str, ...]  # last lines of its output, stdout and stderr together
    log: str  # file with its whole output
    at_s: float  # when it ended, Unix seconds


def manner(exit_code: int) -> str:
    """An exit code in words: "was killed by SIGILL", or "ended with exit status 3"."""
    if exit_code >= 0:
        return f"ended with exit status {exit_code}"
    return f"was killed by {_signal(exit_code)}"


def account(exit_code: int, lines: Sequence[str], log: str) -> str:
    """The end of a process in words: its manner, last lines of output, what to try, and the log."""
    told = _told(lines)
    wrote = f"it wrote last: {' | '.join(told)}; " if told else ""
    cure = CURES.get(_signal(exit_code), OTHER)
    return f"its process {manner(exit_code)}; {wrote}{cure}; its log is {log}"


def _signal(exit_code: int) -> str:
    known = -exit_code in {number.value for number in signal.Signals}
    return signal.Signals(-exit_code).name if known else f"signal {-exit_code}"


def _told(lines: Sequence[str]) -> tuple[str, ...]:
    """Last lines of output, or the first of faulthandler's report, whose last list modules."""
    said = [" ".join(line.split()) for line in lines if line.strip()]
    fatal = max((row for row, line in enumerate(said) if line.startswith(FATAL)), default=None)
    if fatal is None:
        return tuple(said[-NUM_TOLD:])
    return tuple(said[fatal : fatal + NUM_TOLD])
