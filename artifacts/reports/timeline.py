"""Where a step's time went: device seconds by cause, and what the orchestration itself cost. Pure
functions of spans.

At every moment a device is in exactly one column: what it computes, or the reason why it does not.
The columns of a device sum to the length of the window by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from artifacts.records import Generated, Span

Work = Literal["train", "update", "rollout", "evaluate", "reward"]
Bubble = Literal["sleep_wake", "sync", "tail", "reward_wait", "idle"]
# a device that does two things at once is booked under the first of them
WORK: tuple[Work, ...] = get_args(Work)
BUBBLES: tuple[Bubble, ...] = get_args(Bubble)
SYNC_KINDS = frozenset({"publish", "gate"})
SLEEP_KINDS = frozenset({"sleep", "wake"})

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """One device's seconds by column over a window."""

    device: str  # device name
    work_s: dict[str, float]  # seconds by Work
    bubble_s: dict[str, float]  # seconds by Bubble

    @property
    def total_s(self) -> float:
        return sum(self.work_s.values()) + sum(self.bubble_s.values())


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points of time as disjoint intervals in order; empty ones vanish."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def difference(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The points of time of the first that are none of the second: disjoint intervals in order."""
    left: list[Interval] = []
    taken = union(others)
    for start, end in union(intervals):
        for taken_start, taken_end in taken:
            if start < taken_end and taken_start < end:
                left.append((start, taken_start))
                start = taken_end
        left.append((start, end))
    return union(left)


def generating(responses: Iterable[Generated]) -> list[Interval]:
    """When at least one of these responses was in its engine, from submission to last token."""
    return union((response.submitted_s, response.finished_s) for response in responses)


def length(intervals: Iterable[Interval]) -> float:
    """Seconds that the union of the intervals covers."""
    return sum(end - start for start, end in union(intervals))


def clipped(spans: Iterable[Span], start_s: float, end_s: float) -> Iterator[Interval]:
    """The spans' intervals as far as they lie in the window."""
    return within(((span.start_s, span.end_s) for span in spans), start_s, end_s)


def within(intervals: Iterable[Interval], start_s: float, end_s: float) -> Iterator[Interval]:
    """The intervals as far as they lie in the window; those outside come out empty or reversed."""
    return ((max(first, start_s), min(last, end_s)) for first, last in intervals)


def orchestration_s(spans: Sequence[Span], start_s: float, end_s: float) -> float:
    """Seconds of the window in which nothing worked anywhere: the price of flows, tasks and
    hand-overs."""
    return (end_s - start_s) - length(clipped(spans, start_s, end_s))


def stage_s(spans: Sequence[Span], kind: str, start_s: float, end_s: float) -> float:
    """Seconds of the window in which at least one device did this."""
    return length(clipped((span for span in spans if span.kind == kind), start_s, end_s))


def device_times(
    spans: Sequence[Span], devices: Sequence[str], start_s: float, end_s: float
) -> list[DeviceTime]:
    """The ledger of device seconds over the window, one entry per device."""
    works: dict[str, dict[str, float]] = {device: dict.fromkeys(WORK, 0.0) for device in devices}
    bubbles: dict[str, dict[str, float]] = {
        device: dict.fromkeys(BUBBLES, 0.0) for device in devices
    }
    for seconds, active in _moments(spans, start_s, end_s):
        anywhere = frozenset(kind for _, kind in active)
        for device in devices:
            own = frozenset(kind for where, kind in active if where == device)
            work = next((kind for kind in WORK if kind in own), None)
            if work is not None:
                works[device][work] += seconds
            else:
                bubbles[device][_cause(own, anywhere)] += seconds
    return [
        DeviceTime(device=device, work_s=works[device], bubble_s=bubbles[device])
        for device in devices
    ]


def bubble_shares(times: Sequence[DeviceTime]) -> dict[str, float]:
    """Each cause's share of all device seconds; zeros for an empty window."""
    total = sum(time.total_s for time in times)
    return {
        cause: sum(time.bubble_s[cause] for time in times) / total if total else 0.0
        for cause in BUBBLES
    }


def _cause(own: frozenset[str], anywhere: frozenset[str]) -> Bubble:
    """Why a device computes nothing, by what goes on on it and elsewhere.

    Others still generate: the tail. Others train, update or publish: it waits for them to be in
    step. Only the reward works: training waits for verdicts. Nothing works anywhere: idle, which is
    what orchestration costs.
    """
    if own & SLEEP_KINDS:
        return "sleep_wake"
    if own & SYNC_KINDS:
        return "sync"
    if anywhere & {"rollout", "evaluate"}:
        return "tail"
    if anywhere & (SYNC_KINDS | {"train", "update"}):
        return "sync"
    return "reward_wait" if "reward" in anywhere else "idle"


def _moments(
    spans: Sequence[Span], start_s: float, end_s: float
) -> Iterator[tuple[float, frozenset[tuple[str, str]]]]:
    """Seconds between neighbouring starts and ends, and which (device, kind) pairs are active in
    between."""
    changes: list[tuple[float, int, tuple[str, str]]] = []
    for span, (first, last) in zip(spans, clipped(spans, start_s, end_s), strict=True):
        if last > first:
            changes += [(first, 1, (span.device, span.kind)), (last, -1, (span.device, span.kind))]
    active: dict[tuple[str, str], int] = {}
    now = start_s
    for when, change, pair in sorted(changes):
        if when > now:
            yield when - now, frozenset(pair for pair, count in active.items() if count)
            now = when
        active[pair] = active.get(pair, 0) + change
    if end_s > now:
        yield end_s - now, frozenset()
