"""What a pool's processes did, and what they do now."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields

from artifacts.episodes import Ending
from tasks.environments.processes.environment_process import EnvironmentProcess, ProcessState

SHORTEST_S = 1e-5
FACTOR = 1.1  # between two bounds: a quantile is off by a twentieth at most
NUM_BINS = 200  # up to half an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTimes:
    """Durations, counted by size so that reports of many pools add up."""

    counts: tuple[int, ...] = (0,) * NUM_BINS  # by size, from SHORTEST_S on

    def __add__(self, other: WallTimes) -> WallTimes:
        return WallTimes(counts=tuple(map(sum, zip(self.counts, other.counts, strict=True))))

    def quantile_s(self, share: float) -> float:
        """The seconds that this share of all took at most, 0 if there are none."""
        wanted, seen = share * sum(self.counts), 0
        for place, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return SHORTEST_S * FACTOR**place
        return 0.0


def bin_of(wall_s: float) -> int:
    """Where `WallTimes` counts a duration."""
    place = round(math.log(max(wall_s, SHORTEST_S) / SHORTEST_S, FACTOR))
    return min(place, NUM_BINS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """Counts of one pool or, added up, of several."""

    episodes: int = 0  # that began: resets that were answered
    resets: int = 0  # that were asked for
    steps: int = 0  # that were asked for
    crashed: int = 0  # calls that ended so
    unanswered: int = 0  # calls that ended so
    starts: int = 0  # processes
    restarts: int = 0  # of these, in place of one that failed or was killed in a call
    kills: int = 0  # processes that were killed, an idle one for other settings included
    late_answers: int = 0  # that came after the end of their call
    reset_times: WallTimes = WallTimes()  # of resets that were answered, a process's start included
    step_times: WallTimes = WallTimes()  # of steps that were answered

    def __add__(self, other: PoolReport) -> PoolReport:
        names = [field.name for field in fields(self)]
        return PoolReport(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    """One place of a pool now, and what was counted of all its processes."""

    number: int  # from 1 on
    state: ProcessState
    since_s: float  # seconds since the epoch
    started_s: float | None  # of its process, seconds since the epoch; None without one
    episode_id: str  # empty without one
    kind: str  # class of the last environment's settings
    num_steps: int  # that were answered
    step_mean_s: float  # wall seconds of a step, 0 without any
    step_p95_s: float  # wall seconds that 95 % of the steps took at most
    num_restarts: int  # processes in place of one that failed or was killed in a call
    num_failures: int  # processes that failed
    last_failure: str  # the reason in a few words, empty without one


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """How full a pool is."""

    num_places: int  # processes at a time
    num_episodes: int  # that have a place
    num_waiting: int  # resets that wait for one


class ProcessSlot:
    """Holds one process, or none; counts go on when another one takes it."""

    def __init__(self, number: int) -> None:
        self.number = number  # from 1 on
        self.host: EnvironmentProcess | None = None
        self.must_replace = False  # its last process failed, or was killed in a call
        self._empty_since_s = time.time()
        self._kind = ""
        self._num_restarts = 0
        self._num_failures = 0
        self._last_failure = ""
        self._steps_s = 0.0
        self._step_counts = [0] * NUM_BINS

    def take(self, host: EnvironmentProcess) -> bool:
        """Put a process here; whether in place of one that was lost."""
        is_restart, self.must_replace = self.must_replace, False
        self._num_restarts += is_restart
        self._kind = host.kind
        self.host = host
        return is_restart

    def leave(self, host: EnvironmentProcess) -> None:
        """This process has ended; another one may be here already."""
        if self.host is host:
            self.host = None
            self._empty_since_s = time.time()

    def step_took(self, wall_s: float) -> None:
        """A step was answered."""
        self._steps_s += wall_s
        self._step_counts[bin_of(wall_s)] += 1

    def failed(self, detail: str) -> None:
        """Its process failed: the reason in a few words."""
        self._num_failures += 1
        self._last_failure = detail

    @property
    def record(self) -> SlotRecord:
        """What there is now."""
        host = self.host
        times = WallTimes(counts=tuple(self._step_counts))
        num_steps = sum(self._step_counts)
        return SlotRecord(
            number=self.number,
            state=host.state if host else ProcessState.DEAD,
            since_s=host.since_s if host else self._empty_since_s,
            started_s=host.started_s if host else None,
            episode_id=host.episode_id if host else "",
            kind=self._kind,
            num_steps=num_steps,
            step_mean_s=self._steps_s / num_steps if num_steps else 0.0,
            step_p95_s=times.quantile_s(0.95),
            num_restarts=self._num_restarts,
            num_failures=self._num_failures,
            last_failure=self._last_failure,
        )


class ProcessSlots:
    """Those of a pool that ever had a process."""

    def __init__(self) -> None:
        self._slots: list[ProcessSlot] = []  # by number

    def of(self, host: EnvironmentProcess) -> ProcessSlot:
        """Where it is, or was."""
        return self._slots[host.slot - 1]

    def empty(self) -> int:
        """The number of one whose process is gone or about to be, first of those where it must be
        replaced."""
        empty = [slot for slot in self._slots if slot.host is None or slot.host.is_killed]
        if not empty:
            self._slots.append(ProcessSlot(len(self._slots) + 1))
            return len(self._slots)
        return next((slot for slot in empty if slot.must_replace), empty[0]).number

    @property
    def records(self) -> tuple[SlotRecord, ...]:
        """All of them now, by number."""
        return tuple(slot.record for slot in self._slots)


class Tally:
    """Counted as it happens; `report` is a frozen copy."""

    def __init__(self) -> None:
        self.resets = self.steps = self.episodes = 0
        self.starts = self.restarts = self.kills = self.late_answers = 0
        self.failures = {Ending.CRASHED: 0, Ending.UNANSWERED: 0}
        self._reset_counts = [0] * NUM_BINS
        self._step_counts = [0] * NUM_BINS

    def reset_took(self, wall_s: float) -> None:
        """A reset was answered."""
        self.episodes += 1
        self._reset_counts[bin_of(wall_s)] += 1

    def step_took(self, wall_s: float) -> None:
        """A step was answered."""
        self._step_counts[bin_of(wall_s)] += 1

    def late_answer(self) -> None:
        """An answer came after the end of its call."""
        self.late_answers += 1

    def report(self) -> PoolReport:
        """What is counted so far."""
        return PoolReport(
            episodes=self.episodes,
            resets=self.resets,
            steps=self.steps,
            crashed=self.failures[Ending.CRASHED],
            unanswered=self.failures[Ending.UNANSWERED],
            starts=self.starts,
            restarts=self.restarts,
            kills=self.kills,
            late_answers=self.late_answers,
            reset_times=WallTimes(counts=tuple(self._reset_counts)),
            step_times=WallTimes(counts=tuple(self._step_counts)),
        )
