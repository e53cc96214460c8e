"""What a pool's processes did, and what they do now."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tasks.environments.processes.host_state import HostState

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
class HostReport:
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

    def __add__(self, other: HostReport) -> HostReport:
        names = [field.name for field in fields(self)]
        return HostReport(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One place of a pool now, and what was counted of all its processes."""

    number: int  # from 1 on
    state: HostState
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
