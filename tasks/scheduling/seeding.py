"""Seeding: how long the trainer's own devices generate at the beginning of a step, and how many
workers beside them are worth holding (RLBoost, algorithm 1). Pure: times come in, windows go out.

    window for n workers ─▶ a step ─▶ what it waited for ─▶ next window ─▶ memory of n ─▶ ...

    own devices   ├── generate ──┤ window closes: train what is complete, as it comes ──┤ update
    workers       ├── generate ── and what the own devices had begun ──────────────┤ idle

If training waited for responses, the next window is longer; if workers waited for training, it is
shorter. Before the first measurement a window has no length: it stays open until the own devices
have nothing left to generate. A window does not close without an elastic worker; if every worker
leaves after that, the router takes the engines back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed
from tasks.scheduling.stream_training import DeviceGroup, FreesDevices, Moment, Reading, ScaleDown

TIMER_S = 1e-6  # by which a timer may fire early


class SeedingConfig(FrozenConfig):
    """Whether the run's own devices leave the rest of a round to elastic workers, and how fast the
    window in which these devices generate follows the measured times."""

    enabled: bool = Field(
        False,
        description=(
            "In rounds with elastic workers the run's own engines generate at the beginning alone;"
            " then their devices train what is complete, and the rest goes on at the elastic"
            " workers. Without an elastic worker they generate to the end."
        ),
    )
    # steps over which a measured imbalance is made up for; the paper's eta
    damping: Fixed[float] = 3.0
    remembers: Fixed[bool] = True  # take up the window that a number of workers had before


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWindow:
    """The seeding window planned for a step."""

    window_s: float | None  # None for a window without a length
    workers: frozenset[str]  # names of the elastic workers that are present


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedingTimes:
    """Times measured in a step, in seconds."""

    window_s: float  # for which the own devices generated
    train_wait_s: float  # then, for which training had nothing to do before the round was over
    remote_wait_s: float  # from the workers' last response to the end of the step
    remote_s: float  # for which the workers generated
    train_s: float  # of training, had it never waited
    num_own: int  # own engines, each as fast as a worker
    num_workers: int  # workers at the end of the step
    is_steady: bool  # whether the workers were the same throughout the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeding:
    """The state of seeding between two steps."""

    window_s: float | None = None  # of the last step; None before anything was measured
    worth_holding: float | None = None  # workers beyond which training limits a step
    memory_s: Mapping[int, float] = field(default_factory=dict)  # windows by number of workers

    def window_for(self, num_workers: int, config: SeedingConfig) -> float | None:
        """Seconds of the window of a step that begins with num_workers workers; None for a window
        without a length."""
        if config.remembers and num_workers in self.memory_s:
            return self.memory_s[num_workers]
        return self.window_s


def after_step(seeding: Seeding, times: SeedingTimes, config: SeedingConfig) -> Seeding:
    """The state after a step with these times; unchanged if the step had no workers."""
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
    """N_prem: the number of workers that would generate the whole step in the time that training
    takes; None if nothing was trained."""
    if not times.train_s:
        return None
    work_s = times.remote_s * times.num_workers + times.window_s * times.num_own
    return work_s / times.train_s


class SeedingWindow:
    """Frees all devices of a round at once when its seeding window closes (`FreesDevices`)."""

    def __init__(
        self, window_s: float | None, groups: Sequence[DeviceGroup], alone: FreesDevices
    ) -> None:
        """window_s: length of the window; None for one without a length. alone: decides while the
        window is open."""
        self.window_s = window_s
        self.closed_s: float | None = None  # seconds of the round; None while it is open
        self.is_early = False  # whether nothing was left to generate before the time was up
        self._groups = tuple(groups)
        self._alone = alone

    @property
    def next_due_s(self) -> float | None:
        return self.window_s if self.closed_s is None else None

    def start(self) -> list[ScaleDown]:
        return self._alone.start()

    def is_due(self, moment: Moment) -> bool:
        is_open = self.closed_s is None
        return is_open and (self._closes(moment) or self._alone.is_due(moment))

    def handle(self, reading: Reading) -> list[ScaleDown]:
        """While the window is open: the devices that `alone` frees. When it closes, once: every
        device group that still generates and could train."""
        if self.closed_s is not None:
            return []
        if not self._closes(reading):
            return self._alone.handle(reading)
        self.closed_s, self.is_early = reading.elapsed_s, not self._is_time_up(reading)
        in_service = set(reading.capacity_tokens)
        return [
            ScaleDown(engines=group.engines, learners=group.learners)
            for group in self._groups
            if group.engines and group.learners and set(group.engines) <= in_service
        ]

    def _is_time_up(self, moment: Moment) -> bool:
        """True if a window with a length has been open for at least that long."""
        return self.window_s is not None and moment.elapsed_s >= self.window_s - TIMER_S

    def _closes(self, moment: Moment) -> bool:
        """True if the window's time is up or the own devices have nothing left to generate, and an
        elastic worker is present to go on."""
        is_over = self._is_time_up(moment) or not moment.num_running
        return is_over and moment.num_elastic_workers > 0
