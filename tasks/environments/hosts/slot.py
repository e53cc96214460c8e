"""One place of a pool: the processes that take it in turn, and what is told of them together."""

from __future__ import annotations

import time

from tasks.environments.hosts.report import NUM_BINS, HostRecord, WallTimes, bin_of
from tasks.environments.processes.host import Host
from tasks.environments.processes.host_state import HostState


class ProcessSlot:
    """Holds one process, or none; counts go on when another one takes it."""

    def __init__(self, number: int) -> None:
        self.number = number  # from 1 on
        self.host: Host | None = None
        self.must_replace = False  # its last process failed, or was killed in a call
        self._empty_since_s = time.time()
        self._kind = ""
        self._num_restarts = 0
        self._num_failures = 0
        self._last_failure = ""
        self._steps_s = 0.0
        self._step_counts = [0] * NUM_BINS

    def take(self, host: Host) -> bool:
        """Put a process here; whether in place of one that was lost."""
        is_restart, self.must_replace = self.must_replace, False
        self._num_restarts += is_restart
        self._kind = host.kind
        self.host = host
        return is_restart

    def leave(self, host: Host) -> None:
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
    def record(self) -> HostRecord:
        """What there is now."""
        host = self.host
        times = WallTimes(counts=tuple(self._step_counts))
        num_steps = sum(self._step_counts)
        return HostRecord(
            number=self.number,
            state=host.state if host else HostState.DEAD,
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

    def of(self, host: Host) -> ProcessSlot:
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
    def records(self) -> tuple[HostRecord, ...]:
        """All of them now, by number."""
        return tuple(slot.record for slot in self._slots)
