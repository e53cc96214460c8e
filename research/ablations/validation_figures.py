"""Validation score over time: what schedules are worth in what a run is for. Pure.

Held-out reward after some steps, over the seconds of the steps so far, as Figures 8(a) and 9(a) of
the RollPacker paper have it. Runs of a repeat are compared at the time of the one that was over
first, between two evaluations on the line between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import mean

from artifacts.commit import seconds_added
from research.ablations.ablation_figures import (
    MeasuredRun,
    TableLine,
    interval,
    markdown_table,
    student,
)

Points = Sequence[tuple[float, float]]  # seconds of steps, held-out reward; ascending


def over_time(run: MeasuredRun) -> list[tuple[float, float]]:
    """Mean held-out reward of each evaluation over the seconds of the steps before it."""
    ends_s = [0.0, *accumulate(seconds_added(run.steps))]
    return [(ends_s[step], reward) for step, reward in sorted(run.validation.items())]


def reward_at(points: Points, time_s: float) -> float:
    """Reward at a time from the first point's to the last one's."""
    for (from_s, before), (to_s, after) in pairwise(points):
        if time_s <= to_s:
            return before + (after - before) * (time_s - from_s) / (to_s - from_s)
    return points[-1][1]


def validation_report(lines: Sequence[TableLine], runs: Sequence[MeasuredRun], period: int) -> str:
    """Markdown table: seconds and reward of whole runs, and rewards at equal time, paired by seed
    with those of the first variant."""
    curves = {(run.variant, run.repeat): over_time(run) for run in runs if run.validation}
    shown = [line for line in lines if any(name == line.name for name, _ in curves)]
    whole = [
        repeat
        for repeat in sorted({repeat for _, repeat in curves})
        if all((line.name, repeat) in curves for line in shown)
    ]
    if not whole:
        return "no repeat has a run of every variant yet\n"
    ends_s = {repeat: min(curves[line.name, repeat][-1][0] for line in shown) for repeat in whole}
    of_first = [reward_at(curves[shown[0].name, repeat], ends_s[repeat]) for repeat in whole]
    rows = []
    for line in shown:
        own = [curves[line.name, repeat] for repeat in whole]
        at_end = [reward_at(curves[line.name, repeat], ends_s[repeat]) for repeat in whole]
        gains = [reward - first for reward, first in zip(at_end, of_first, strict=True)]
        rows.append(
            (
                line.label,
                f"{mean(points[-1][0] for points in own):.0f}",
                f"{mean(points[0][1] for points in own):.3f}",
                f"{mean(points[-1][1] for points in own):.3f}",
                f"{mean(at_end):.3f}",
                interval(student(gains)) if line is not shown[0] else "",
                str(len(whole)),
            )
        )
    head = (
        *("variant", "seconds of all steps", "held-out before", "after all steps"),
        *("at equal time", f"over {shown[0].name} [95 %]", "seeds"),
    )
    return markdown_table(head, rows) + "\n"
