"""Divides the time of a step: device seconds by work or by cause of a bubble, and the time that
orchestration itself takes. At every moment a device is in exactly one column: its work, or the
reason why it does not work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

from artifacts.records import Generated, Span

Work = Literal["train", "update", "rollout", "evaluate", "reward"]
Bubble = Literal["sleep_wake", "sync", "tail", "reward_wait", "idle"]
# two kinds of work at once count as the first of them
WORK: tuple[Work, ...] = get_args(Work)
BUBBLES: tuple[Bubble, ...] = get_args(Bubble)
SYNC_KINDS = frozenset({"publish", "gate"})
SLEEP_KINDS = frozenset({"sleep", "wake"})

Interval = tuple[float, float]
Causes = list[tuple[Bubble, list[Interval]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """The seconds of one device over a window, by column."""

    device: str  # device name
    work_s: dict[str, float]  # seconds by Work
    bubble_s: dict[str, float]  # seconds by Bubble

    @property
    def total_s(self) -> float:
        return sum(self.work_s.values()) + sum(self.bubble_s.values())


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals into disjoint ones in ascending order; empty intervals vanish."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def difference(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Subtract `others` from `intervals`; returns disjoint intervals in ascending order."""
    left: list[Interval] = []
    holes = union(others)
    place = 0  # of the first hole that may still touch the intervals to come
    for start, end in union(intervals):
        while place < len(holes) and holes[place][1] <= start:
            place += 1
        for hole_start, hole_end in islice(holes, place, None):
            if hole_start >= end:
                break
            left.append((start, hole_start))
            start = hole_end
        left.append((start, end))
    return union(left)


def generating(responses: Iterable[Generated]) -> list[Interval]:
    """The intervals in which at least one of these responses was in an engine, from its submission
    to its last token."""
    return union((response.submitted_s, response.finished_s) for response in responses)


def length(intervals: Iterable[Interval]) -> float:
    """Length of the intervals' union in seconds."""
    return sum((end - start for start, end in union(intervals)), 0.0)


def clipped(spans: Iterable[Span], start_s: float, end_s: float) -> Iterator[Interval]:
    """Cut the spans' intervals to the window (see `within`)."""
    return within(((span.start_s, span.end_s) for span in spans), start_s, end_s)


def within(intervals: Iterable[Interval], start_s: float, end_s: float) -> Iterator[Interval]:
    """Cut intervals to the window from start_s to end_s. Intervals outside the window come out
    empty or reversed, which `union` drops."""
    return ((max(first, start_s), min(last, end_s)) for first, last in intervals)


def orchestration_s(spans: Sequence[Span], start_s: float, end_s: float) -> float:
    """Seconds of the window in which no device works: the cost of flows, tasks and hand-overs."""
    return (end_s - start_s) - length(clipped(spans, start_s, end_s))


def stage_s(spans: Sequence[Span], kind: str, start_s: float, end_s: float) -> float:
    """Seconds of the window in which at least one device did this kind of work."""
    return length(clipped((span for span in spans if span.kind == kind), start_s, end_s))


def attributed_s(
    spans: Iterable[Span], kinds: Sequence[str], start_s: float, end_s: float
) -> tuple[dict[str, float], float]:
    """Divide the window's seconds among kinds of work; returns seconds by kind, and the seconds in
    which no device did work of these kinds. A moment with several kinds counts for the first in
    `kinds`, so that all seconds sum to the window."""
    intervals = _by_kind(spans, start_s, end_s)
    seconds, left = dict[str, float](), [(start_s, end_s)]
    for kind in kinds:
        seconds[kind], left = taken(left, intervals.get(kind, []))
    return seconds, length(left)


def device_times(
    spans: Sequence[Span], devices: Sequence[str], start_s: float, end_s: float
) -> list[DeviceTime]:
    """The seconds of every device over the window by column, one entry per device.

    The first of its kinds of work counts, else the first of the causes of a bubble. tail: others
    still generate. sync: others train, update or publish. reward_wait: training waits for verdicts.
    idle: nothing works anywhere, which is the cost of orchestration.
    """
    of_device: dict[str, list[Span]] = {device: [] for device in devices}
    for span in spans:
        if span.device in of_device:
            of_device[span.device].append(span)
    anywhere = _by_kind(spans, start_s, end_s)
    elsewhere: Causes = [
        ("tail", _of_kinds(anywhere, {"rollout", "evaluate"})),
        ("sync", _of_kinds(anywhere, SYNC_KINDS | {"train", "update"})),
        ("reward_wait", _of_kinds(anywhere, {"reward"})),
    ]
    return [
        _device_time(device, _by_kind(own, start_s, end_s), elsewhere, (start_s, end_s))
        for device, own in of_device.items()
    ]


def visiting_times(
    spans: Sequence[Span], devices: Iterable[str], start_s: float, end_s: float
) -> list[DeviceTime]:
    """`device_times` for devices that are present only in a part of the window: from the start of a
    device's first span to the end of its last."""
    times: list[DeviceTime] = []
    for device in devices:
        own = list(clipped((span for span in spans if span.device == device), start_s, end_s))
        present = (min(first for first, _ in own), max(last for _, last in own)) if own else (0, 0)
        times += device_times(spans, [device], *present)
    return times


def bubble_shares(times: Sequence[DeviceTime]) -> dict[str, float]:
    """The share of each bubble's cause in all device seconds; zeros for an empty window."""
    total = sum(time.total_s for time in times)
    return {
        cause: sum(time.bubble_s[cause] for time in times) / total if total else 0.0
        for cause in BUBBLES
    }


def _device_time(
    device: str, own: Mapping[str, list[Interval]], elsewhere: Causes, window: Interval
) -> DeviceTime:
    work: dict[str, float] = dict.fromkeys(WORK, 0.0)
    bubbles: dict[str, float] = dict.fromkeys(BUBBLES, 0.0)
    left = [window]
    for kind in WORK:
        work[kind], left = taken(left, own.get(kind, []))
    at_once: Causes = [
        ("sleep_wake", _of_kinds(own, SLEEP_KINDS)),
        ("sync", _of_kinds(own, SYNC_KINDS)),
    ]
    for cause, intervals in (*at_once, *elsewhere):
        seconds, left = taken(left, intervals)
        bubbles[cause] += seconds
    bubbles["idle"] += length(left)
    return DeviceTime(device=device, work_s=work, bubble_s=bubbles)


def taken(left: list[Interval], intervals: Iterable[Interval]) -> tuple[float, list[Interval]]:
    """Remove intervals from `left`; returns the removed seconds and the rest of `left`."""
    rest = difference(left, intervals)
    return length(left) - length(rest), rest


def _by_kind(spans: Iterable[Span], start_s: float, end_s: float) -> dict[str, list[Interval]]:
    """The intervals of each kind of work within the window, disjoint and in order."""
    intervals: dict[str, list[Interval]] = {}
    for span in spans:
        within_window = (max(span.start_s, start_s), min(span.end_s, end_s))
        intervals.setdefault(span.kind, []).append(within_window)
    return {kind: union(done) for kind, done in intervals.items()}


def _of_kinds(intervals: Mapping[str, list[Interval]], kinds: Collection[str]) -> list[Interval]:
    """The intervals in which any of these kinds of work was done."""
    return union(moment for kind in kinds for moment in intervals.get(kind, []))
