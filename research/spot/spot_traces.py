"""When spot workers come and go: read from a file, or drawn.

    time_s,change        a CSV of one's own: +1 a worker comes, -1 the oldest one is taken away
    0,+1
    1800,-1

The trace of the paper is not published with its numbers: its segments A, B and C are described (A:
high availability with many workers that are taken and given back at once; B: frequent preemption
and low availability), and the published gains imply 3.8 workers on average for the 8B model. So
segments are drawn: `CAPACITY` places, each given and taken away after exponential times.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOUR_S = 3600.0
CAPACITY = 6  # places that the market may fill; the paper holds at most as many for 14B


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChange:
    """Workers come (positive) or are taken away."""

    time_s: float
    change: int


Trace = tuple[TraceChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """How long a place is filled and empty, means in seconds."""

    filled_s: float
    empty_s: float

    def trace(self, seed: int, duration_s: float = 2 * HOUR_S) -> Trace:
        """Every place by itself; how many are filled at first is drawn, too."""
        drawn = random.Random(seed)
        share = self.filled_s / (self.filled_s + self.empty_s)
        changes: list[TraceChange] = []
        for _ in range(CAPACITY):
            is_filled, now_s = drawn.random() < share, 0.0
            if is_filled:
                changes.append(TraceChange(time_s=0.0, change=1))
            while True:
                mean_s = self.filled_s if is_filled else self.empty_s
                now_s += drawn.expovariate(1 / mean_s)
                if now_s >= duration_s:
                    break
                is_filled = not is_filled
                changes.append(TraceChange(time_s=now_s, change=1 if is_filled else -1))
        return tuple(sorted(changes, key=lambda change: change.time_s))


SEGMENTS: Mapping[str, Market] = {
    "A": Market(filled_s=1800, empty_s=240),  # 5.3 of 6 on average; back within minutes
    "B": Market(filled_s=720, empty_s=1200),  # 2.2 of 6; a preemption every two minutes or three
    "C": Market(filled_s=2400, empty_s=1440),  # 3.8 of 6
}


def steady(num_workers: int) -> Trace:
    """So many from the beginning, for ever."""
    return (TraceChange(time_s=0.0, change=num_workers),) if num_workers else ()


def read_trace(path: Path) -> Trace:
    """A file with the columns time_s and change. ValueError names the line that is wrong."""
    changes: list[TraceChange] = []
    with path.open(newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                change = TraceChange(time_s=float(row["time_s"]), change=int(row["change"]))
            except (KeyError, TypeError, ValueError):
                raise ValueError(
                    f"line {number} of {path} must have a time_s in seconds and a change like +1 or"
                    f" -1, got {row}; correct it"
                ) from None
            changes.append(change)
    return tuple(sorted(changes, key=lambda change: change.time_s))


def mean_workers(trace: Sequence[TraceChange], duration_s: float) -> float:
    """Workers on average, were everyone there taken."""
    total = now_s = 0.0
    present = 0
    for change in (*trace, TraceChange(time_s=duration_s, change=0)):
        until_s = min(change.time_s, duration_s)
        total += present * (until_s - now_s)
        now_s = until_s
        present = max(0, present + change.change)
    return total / duration_s
