"""Counts of a pool of environment processes, and the state of each of its slots.

A slot is a place for one process. Its counts go on when another process takes it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from artifacts.episodes import Ending
from tasks.environments.processes.environment_process import EnvironmentProcess, ProcessState

SHORTEST_S = 1e-5
FACTOR = 1.1  # between two bounds: a quantile is off by a twentieth at most
NUM_BINS = 200  # up to half an hour


@dataclass(slots=True)
class WallTimes:
    """Histogram of durations, with logarithmic bins from SHORTEST_S on."""

    counts: list[int] = field(default_factory=lambda: [0] * NUM_BINS)

    def add(self, wall_s: float) -> None:
        """Count a duration."""
        place = round(math.log(max(wall_s, SHORTEST_S) / SHORTEST_S, FACTOR))
        self.counts[min(place, NUM_BINS - 1)] += 1

    def quantile_s(self, share: float) -> float:
        """Returns the seconds that this share of all durations took at most, 0 without any."""
        wanted, seen = share * sum(self.counts), 0
        for place, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return SHORTEST_S * FACTOR**place
        return 0.0


@dataclass(slots=True, kw_only=True)
class PoolReport:
    """Running counts of one pool."""

    episodes: int = 0  # that began: resets that were answered
    resets: int = 0  # that were asked for
    steps: int = 0  # that were asked for
    crashed: int = 0  # calls that ended so
    unanswered: int = 0  # calls that ended so
    starts: int = 0  # processes
    restarts: int = 0  # of these, in place of one that failed or was killed in a call
    kills: int = 0  # processes that were killed, an idle one for other settings included
    late_answers: int = 0  # that came after the end of their call
    # of resets that were answered, a process's start included
    reset_times: WallTimes = field(default_factory=WallTimes)
    step_times: WallTimes = field(default_factory=WallTimes)  # of steps that were answered

    def reset_took(self, wall_s: float) -> None:
        """Count a reset that was answered."""
        self.episodes += 1
        self.reset_times.add(wall_s)

    def late_answer(self) -> None:
        """Count an answer that came after the end of its call."""
        self.late_answers += 1

    def failed(self, ending: Ending) -> None:
        """Count a call that ended in CRASHED or UNANSWERED."""
        if ending is Ending.CRASHED:
            self.crashed += 1
        else:
            self.unanswered += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """The places, episodes and waiting resets of a pool."""

    num_places: int  # processes at a time
    num_episodes: int  # that have a place
    num_waiting: int  # resets that wait for one


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    """One slot of a pool now, and the counts of all its processes."""

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


class ProcessSlot:
    """A place for one process; its counts cover all processes that it has held."""

    def __init__(self, number: int) -> None:
        self.number = number  # from 1 on
        self.process: EnvironmentProcess | None = None
        self.must_replace = False  # its last process failed, or was killed in a call
        self._empty_since_s = time.time()
        self._kind = ""
        self._num_restarts = 0
        self._num_failures = 0
        self._last_failure = ""
        self._steps_s = 0.0
        self._step_times = WallTimes()

    def take(self, process: EnvironmentProcess) -> bool:
        """Put a process into the slot; true if it replaces one that was lost."""
        is_restart, self.must_replace = self.must_replace, False
        self._num_restarts += is_restart
        self._kind = process.kind
        self.process = process
        return is_restart

    def leave(self, process: EnvironmentProcess) -> None:
        """Remove a process that has ended, unless another one has taken the slot already."""
        if self.process is process:
            self.process = None
            self._empty_since_s = time.time()

    def step_took(self, wall_s: float) -> None:
        """Count a step that was answered."""
        self._steps_s += wall_s
        self._step_times.add(wall_s)

    def failed(self, detail: str) -> None:
        """Count a failure of its process. detail: the reason in a few words."""
        self._num_failures += 1
        self._last_failure = detail

    @property
    def record(self) -> SlotRecord:
        """The state and the counts of the slot now."""
        process, num_steps = self.process, sum(self._step_times.counts)
        return SlotRecord(
            number=self.number,
            state=process.state if process else ProcessState.DEAD,
            since_s=process.since_s if process else self._empty_since_s,
            started_s=process.started_s if process else None,
            episode_id=process.episode_id if process else "",
            kind=self._kind,
            num_steps=num_steps,
            step_mean_s=self._steps_s / num_steps if num_steps else 0.0,
            step_p95_s=self._step_times.quantile_s(0.95),
            num_restarts=self._num_restarts,
            num_failures=self._num_failures,
            last_failure=self._last_failure,
        )
