"""Counts of a pool of environment processes, and the state of each of its slots.

A slot is a place for one process. Its counts go on when another process takes it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from artifacts.episodes import Ending
from artifacts.reports.environment_processes import ProcessStatus
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


@dataclass(slots=True, kw_only=True)
class ProcessSlot:
    """A place for one process; its counts cover all processes that it has held."""

    number: int  # from 1 on
    process: EnvironmentProcess | None = None
    must_replace: bool = False  # its last process failed, or was killed in a call
    empty_since_s: float = field(default_factory=time.time)  # seconds since the epoch
    kind: str = ""  # class of the last environment's settings
    num_restarts: int = 0  # processes in place of one that failed or was killed in a call
    num_failures: int = 0  # processes that failed
    last_failure: str = ""  # the reason in a few words, empty without one
    steps_s: float = 0.0  # wall seconds of all steps that were answered
    step_times: WallTimes = field(default_factory=WallTimes)

    @property
    def state(self) -> ProcessState:
        """The state of its process; DEAD without one."""
        return self.process.state if self.process else ProcessState.DEAD

    @property
    def episode_id(self) -> str:
        """The episode of its process; empty without one."""
        return self.process.episode_id if self.process else ""

    def take(self, process: EnvironmentProcess) -> bool:
        """Put a process into the slot; true if it replaces one that was lost."""
        is_restart, self.must_replace = self.must_replace, False
        self.num_restarts += is_restart
        self.kind = process.settings.class_name
        self.process = process
        return is_restart

    def failed(self, detail: str) -> None:
        """Count a failure of its process. detail: the reason in a few words."""
        self.num_failures += 1
        self.last_failure = detail

    def status(self, now_s: float) -> ProcessStatus:
        """Returns the state and the counts of the slot. now_s: seconds since the epoch."""
        process, num_steps = self.process, sum(self.step_times.counts)
        return ProcessStatus(
            number=self.number,
            state=self.state,
            for_s=now_s - (process.since_s if process else self.empty_since_s),
            age_s=now_s - process.started_s if process else None,
            episode=self.episode_id,
            kind=self.kind,
            num_steps=num_steps,
            mean_s=self.steps_s / num_steps if num_steps else 0.0,
            p95_s=self.step_times.quantile_s(0.95),
            num_restarts=self.num_restarts,
            last_failure=self.last_failure,
        )
