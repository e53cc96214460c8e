"""When several workers come and go: a schedule as changes in time, and who comes or goes at each.
Pure.

    step, most 4     +1 +1 +1 +1 -1 +1 -1 +1 ...    one change an interval, for ever
    trace            what a CSV file has: seconds, +1 or -1
    changes ──▶ moves: a start takes the lowest free slot, a retirement the worker that has been
                there for longest

`step` is the schedule of PolyRL's launch script: between most and most - 1 workers once all are
there, the oldest retired and its place taken an interval later.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Literal

STEPS: Mapping[str, Literal[1, -1]] = {"1": 1, "+1": 1, "-1": -1}  # as a trace writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCountChange:
    """One worker more or less."""

    at_s: float  # seconds since the schedule began
    by: Literal[1, -1]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMove:
    """A change of a certain worker."""

    at_s: float  # seconds since the schedule began
    kind: Literal["start", "retire"]
    slot: int  # place of the worker among those of this machine, from 0
    present: int  # workers that are there after it


def step_changes(interval_s: float, most: int) -> Iterator[WorkerCountChange]:
    """A worker more every interval up to `most`, then one less and one more in turn; never ends."""
    turns: cycle[Literal[1, -1]] = cycle((-1, 1))
    for place in count():
        by = 1 if place < most else next(turns)
        yield WorkerCountChange(at_s=place * interval_s, by=by)


def trace_changes(lines: Iterable[str]) -> tuple[WorkerCountChange, ...]:
    """The changes of a CSV file of seconds and +1 or -1, a heading and lines that begin with #
    left out. ValueError for a line that is none, out of order, or retires where nobody is."""
    changes: list[WorkerCountChange] = []
    present = 0
    rows = csv.reader(line for line in lines if line.strip() and not line.startswith("#"))
    for place, row in enumerate(rows):
        if place == 0 and not _is_number(row[0]) and row[-1].strip() not in STEPS:
            continue
        change = _change(row)
        present += change.by
        if present < 0 or (changes and change.at_s < changes[-1].at_s):
            raise ValueError(
                "a trace must be in order of time and retire only workers that are there, got"
                f" {','.join(row)!r} after {len(changes)} changes; sort it, or drop the line"
            )
        changes.append(change)
    if not changes:
        raise ValueError("a trace must have a change, it has none; write lines like '0,+1'")
    return tuple(changes)


def _change(row: list[str]) -> WorkerCountChange:
    if len(row) != 2 or not _is_number(row[0]) or row[1].strip() not in STEPS:
        raise ValueError(
            f"a line of a trace must read SECONDS,+1 or SECONDS,-1, got {','.join(row)!r};"
            " correct it"
        )
    return WorkerCountChange(at_s=float(row[0]), by=STEPS[row[1].strip()])


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdecimal()


def moves(changes: Iterable[WorkerCountChange]) -> Iterator[WorkerMove]:
    """Who starts and who is retired."""
    present: list[int] = []  # slots, the oldest worker first
    for change in changes:
        if change.by > 0:
            slot = next(slot for slot in count() if slot not in present)
            present.append(slot)
        else:
            slot = present.pop(0)
        yield WorkerMove(
            at_s=change.at_s,
            kind="start" if change.by > 0 else "retire",
            slot=slot,
            present=len(present),
        )


def first_moves(changes: Iterable[WorkerCountChange], number: int) -> tuple[WorkerMove, ...]:
    """The first so many, for a plan that is printed."""
    return tuple(islice(moves(changes), number))
