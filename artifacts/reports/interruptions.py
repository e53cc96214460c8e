"""How often a run was interrupted and went on, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.commit import RunManifest, StepCommit
from artifacts.episodes import Ending
from artifacts.reports.episode_figures import ENDED

ATTEMPTS = "round/attempts"


def interruptions(manifest: RunManifest, commits: Sequence[StepCommit]) -> str:
    """A line of counts: attempts at the run after the first, attempts at a step after the first of
    the attempt at the run that committed it, and episodes that their environment failed. Empty
    where there was nothing."""
    failed = [f"{ENDED}{ending}" for ending in Ending if ending.is_failure]
    figures = [commit.metrics for commit in commits]
    counts = {
        "resumed": max(0, len(manifest.prefect_flow_run_ids) - 1),
        "steps begun again": int(sum(step.get(ATTEMPTS, 1.0) - 1 for step in figures)),
        "episodes whose environment failed": int(
            sum(step.get(name, 0.0) for step in figures for name in failed)
        ),
    }
    return ", ".join(f"{what}: {times}" for what, times in counts.items() if times)
