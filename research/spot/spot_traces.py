"""Drawn traces of when spot workers come and go.

The trace of the paper is not published with its numbers: its segments A, B and C are described (A:
high availability with many workers that are taken and given back at once; B: frequent preemption
and low availability), and the published gains imply 3.8 workers on average for the 8B model. So
segments are drawn: `CAPACITY` places, each given and taken away after exponential times.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

HOUR_S = 3600.0
CAPACITY = 6  # places that the market may fill; the paper holds at most as many for 14B


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChange:
    """Workers that come (positive), or of which the oldest are taken away (negative)."""

    time_s: float
    change: int


Trace = tuple[TraceChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """How long a place is filled and empty, means in seconds."""

    filled_s: float
    empty_s: float

    def trace(self, seed: int, duration_s: float = 2 * HOUR_S) -> Trace:
        """The changes of all places, each drawn by itself, as is whether it is filled at first."""
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
    """A trace whose workers are there from the beginning and stay."""
    return (TraceChange(time_s=0.0, change=num_workers),) if num_workers else ()
