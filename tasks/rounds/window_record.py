"""What became of a round's seeding window, as it is kept with the round's report.

SeedingWindow, RoundResult ─▶ window_record ─▶ rounds/00007.json ─▶ `tasks.metrics.seeding_times`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tasks.rounds.records import RoundResult
from tasks.scheduling.seeding_window import SeedingWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """The window of one round; but for the first, seconds of the round."""

    began_s: float  # when the round began, Unix seconds
    window_s: float | None  # that it was given; None without a length
    closed_s: float | None  # when it closed; None where it was open to the end
    is_early: bool  # whether it closed because there was nothing left to do
    freed_s: tuple[float, ...]  # when each learner that the round freed was free
    took_s: float  # the round, until nothing of it ran any more

    @property
    def own_s(self) -> float:
        """For how long the run's own engines generated, the mean over the learners that were freed
        of them."""
        return sum(self.freed_s) / len(self.freed_s) if self.freed_s else self.took_s

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:  # Any: JSON values
        return cls(**{**kept, "freed_s": tuple(kept["freed_s"])})


def window_record(window: SeedingWindow, result: RoundResult, began_s: float) -> WindowRecord:
    """Of a round that began at this time, Unix seconds."""
    closing = window.closing
    return WindowRecord(
        began_s=began_s,
        window_s=window.window_s,
        closed_s=None if closing is None else closing.at_s,
        is_early=closing is not None and closing.is_early,
        freed_s=result.freed_s,
        took_s=result.took_s,
    )
