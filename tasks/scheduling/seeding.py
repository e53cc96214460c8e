"""Seeding: how long the trainer's own devices generate at the beginning of a step, and how many
workers beside them are worth holding (RLBoost, algorithm 1).

    window for n workers ─▶ a step ─▶ what it waited for ─▶ next window ─▶ memory of n ─▶ ...

    own devices   ├── generate ──┤ window closes: train what is complete, as it comes ──┤ update
    workers       ├── generate ── and what the own devices had begun ──────────────┤ idle

Training that waits for responses asks for a longer window, workers that wait for training for a
shorter one. Pure: times come in, windows go out. Nothing is known before it was measured: a window
without a length stays open until the own devices have nothing left to generate.

Within a round `SeedingWindow` decides, one object for one round: as long as there is no elastic
worker, the stream trainer frees devices as it would alone; when the window closes, every device
group that can train is freed. When every elastic worker goes, the router takes the engines back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict, Field

from artifacts.fixed_fields import Fixed
from tasks.scheduling.stream_training import DeviceGroup, FreesDevices, Moment, Reading, ScaleDown

TIMER_S = 1e-6  # by which a timer may fire early


class SeedingConfig(BaseModel):
    """Whether devices of the run leave the rest of a round to elastic workers, and how fast the
    window in which they generate themselves follows what steps measure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(
        False,
        description=(
            "In rounds with elastic workers the run's own engines generate at the beginning alone;"
            " then their devices train what is complete, and the rest goes on at the elastic"
            " workers. Without a elastic worker they generate to the end."
        ),
    )
    # steps over which a measured imbalance is made up for; the paper's eta
    damping: Fixed[float] = 3.0
    remembers: Fixed[bool] = True  # take up the window that a number of workers had before


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWindow:
    """The window that a step begins with."""

    window_s: float | None  # see `is_over`
    workers: frozenset[str]  # names of those that are there


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedingTimes:
    """What a step measured; seconds."""

    window_s: float  # for which the own devices generated
    train_wait_s: float  # then, for which training had nothing to do before the round was over
    remote_wait_s: float  # from the workers' last response to the end of the step
    remote_s: float  # for which the workers generated
    train_s: float  # of training, had it never waited
    num_own: int  # own engines, each as fast as a worker
    num_workers: int  # workers at the end of the step
    is_steady: bool  # whether they were the same from its beginning to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeding:
    """Where the policy stands between two steps."""

    window_s: float | None = None  # of the last step; None before anything was measured
    worth_holding: float | None = None  # workers beyond which training is what limits a step
    memory_s: Mapping[int, float] = field(default_factory=dict)  # windows by number of workers

    def window_for(self, num_workers: int, config: SeedingConfig) -> float | None:
        """The window of a step that begins with so many workers; None has no length."""
        if config.remembers and num_workers in self.memory_s:
            return self.memory_s[num_workers]
        return self.window_s


def after_step(seeding: Seeding, times: SeedingTimes, config: SeedingConfig) -> Seeding:
    """What a step teaches; one without workers teaches nothing."""
    if not times.num_workers:
        return seeding
    change_s = (times.train_wait_s - times.remote_wait_s) / config.damping
    window_s = max(0.0, times.window_s + change_s)
    memory_s = {**seeding.memory_s, times.num_workers: window_s}
    return replace(
        seeding,
        window_s=window_s,
        worth_holding=workers_worth_holding(times),
        memory_s=memory_s if times.is_steady else seeding.memory_s,
    )


def workers_worth_holding(times: SeedingTimes) -> float | None:
    """N_prem: workers that would generate the whole step in the time that training takes; None
    where nothing was trained."""
    if not times.train_s:
        return None
    work_s = times.remote_s * times.num_workers + times.window_s * times.num_own
    return work_s / times.train_s


def is_time_up(window_s: float | None, elapsed_s: float) -> bool:
    """Whether a window with a length has been open for so long."""
    return window_s is not None and elapsed_s >= window_s - TIMER_S


def is_over(
    window_s: float | None, elapsed_s: float, *, num_own_running: int, num_workers: int
) -> bool:
    """Whether the own devices stop generating now: their time is up or their work is done, and
    somebody else is there to go on."""
    if not num_workers:
        return False
    return is_time_up(window_s, elapsed_s) or not num_own_running


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The end of a window."""

    at_s: float  # seconds of the round
    is_early: bool  # whether there was nothing left to do before the time was up


class SeedingWindow:
    """Frees all devices at once when the window closes (`FreesDevices`)."""

    def __init__(
        self, window_s: float | None, groups: Sequence[DeviceGroup], alone: FreesDevices
    ) -> None:
        """window_s: see `seeding.is_over`. alone: decides as long as the window is open."""
        self.window_s = window_s
        self.closing: Closing | None = None  # while it is open
        self._groups = tuple(groups)
        self._alone = alone

    @property
    def next_due_s(self) -> float | None:
        return self.window_s if self.closing is None else None

    def start(self) -> list[ScaleDown]:
        return self._alone.start()

    def is_due(self, moment: Moment) -> bool:
        is_open = self.closing is None
        return is_open and (self._closes(moment) or self._alone.is_due(moment))

    def handle(self, reading: Reading) -> list[ScaleDown]:
        """Every device group that still generates and could train, once; before that what the other
        one frees."""
        if self.closing is not None:
            return []
        if not self._closes(reading):
            return self._alone.handle(reading)
        is_early = not is_time_up(self.window_s, reading.elapsed_s)
        self.closing = Closing(at_s=reading.elapsed_s, is_early=is_early)
        in_service = set(reading.capacity_tokens)
        return [
            ScaleDown(engines=group.engines, learners=group.learners)
            for group in self._groups
            if group.engines and group.learners and set(group.engines) <= in_service
        ]

    def _closes(self, moment: Moment) -> bool:
        return is_over(
            self.window_s,
            moment.elapsed_s,
            num_own_running=moment.num_running,
            num_workers=moment.num_elastic_workers,
        )
