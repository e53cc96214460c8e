"""What a run of ours left behind, as far as a simulation of it needs it: its responses, its rounds
and the seconds of their parts.

    responses/, steps/ and manifest of a run's store ──▶ RecordedRun ──▶ `replay`, `calibration`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.commit import StepCommit, read_commits, read_manifest
from artifacts.journal import Journal
from artifacts.store import Store
from artifacts.tables import ResponseRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A committed step."""

    commit: StepCommit
    rows: tuple[ResponseRow, ...]  # its responses

    @property
    def metrics(self) -> Mapping[str, float]:
        """Its figures by name, see `tasks.metrics.step_metrics`."""
        return self.commit.metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run that has committed steps. ValueError without any."""

    config: Mapping[str, Any]  # the effective configuration; Any: JSON values
    steps: tuple[RecordedStep, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a recorded run must have at least one committed step, got none")

    @property
    def rows(self) -> tuple[ResponseRow, ...]:
        """All responses, step by step."""
        return tuple(row for step in self.steps for row in step.rows)

    @property
    def longest_tokens(self) -> int:
        """Bound on a response."""
        return int(self.config["sampling"]["max_response_tokens"])


def read_run(store: Store) -> RecordedRun:
    """The committed steps of the run in this store. ValueError when there is none."""
    journal = Journal(store)
    return RecordedRun(
        config=read_manifest(store).config,
        steps=tuple(
            RecordedStep(commit=commit, rows=tuple(journal.read(commit.step)))
            for commit in read_commits(store)
        ),
    )
