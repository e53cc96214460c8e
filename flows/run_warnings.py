"""The warnings that a run's steps give: limits that its figures passed, and steps in a row in which
nothing was learned, with two of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from artifacts.commit import StepCommit, figures_by_step
from artifacts.journal import Journal
from artifacts.printable import printable_line
from tasks.metrics.monitors import MonitorConfig, nothing_learned, warnings_of

SHOWN_ANSWERS, SHOWN_CHARACTERS = 2, 120


class Warned(NamedTuple):
    """A warning, and the step that gave it."""

    step: int
    text: str


def run_warnings(
    commits: Sequence[StepCommit], config: MonitorConfig, journal: Journal, *, since: int = 0
) -> tuple[Warned, ...]:
    """Every warning of a run with these steps, by step; those that steps before `since` gave are
    left out."""
    steps = figures_by_step(commits)
    told = [Warned(alarm.step, str(alarm)) for alarm in warnings_of(steps, config)]
    told += [
        Warned(flat.step, f"{flat}{_answers(journal, flat.step)}")
        for flat in nothing_learned(steps, config.steps_in_a_row)
        if flat.step >= since
    ]
    recent = (warned for warned in told if warned.step >= since)
    return tuple(sorted(recent, key=lambda warned: warned.step))


def _answers(journal: Journal, step: int) -> str:
    """Some answers of a step, in words for one line; nothing where none is recorded."""
    texts = dict.fromkeys(
        printable_line(row.response.generated.text, SHOWN_CHARACTERS)
        for row in journal.read(step)
        if row.response.score is not None
    )
    shown = ", ".join(f'"{text}"' for text in list(texts)[:SHOWN_ANSWERS])
    return f"; answers of that step: {shown}" if shown else ""
