"""The running counts of a pool."""

from __future__ import annotations

from artifacts.episodes import Ending
from tasks.environments.hosts.report import NUM_BINS, HostReport, WallTimes, bin_of


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

    def report(self) -> HostReport:
        """What is counted so far."""
        return HostReport(
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
