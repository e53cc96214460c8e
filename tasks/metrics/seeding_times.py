"""The times of a step that seeding learns from: how long training and elastic workers waited for
each other. Pure.

    StepReport: window of the round         ─┐
                rollout of elastic workers  ─┼─▶ SeedingTimes ─▶ `scheduling.seeding.after_step`
                training                    ─┘

The clocks of several machines are assumed to agree. Leaves out which workers are present, and the
next window.
"""

from __future__ import annotations

from collections.abc import Iterable

from artifacts.reports.timeline import clipped
from tasks.metrics.report import StepReport
from tasks.rounds.report import WindowRecord
from tasks.scheduling.seeding import Seeding, SeedingTimes


def seeding_times(report: StepReport, staying: frozenset[str]) -> SeedingTimes | None:
    """The measured times of a step. None if no elastic worker generated anything, or if the step
    took several attempts, whose times do not belong together.

    staying: names of the elastic workers that are present at the end of the step.
    """
    window, planned = report.rollout.window, report.plan.window
    spans = [span for span in report.rollout.spans if span.actor in report.rollout.joined]
    if window is None or planned is None or not spans:
        return None
    if report.started_s > min(window.began_s, report.rollout.started_s):
        return None  # an earlier attempt left something of the round
    round_over_s = window.began_s + window.took_s
    num_ranks = len(report.plan.run.learners)
    training = [span for span in report.gradients.spans if span.kind == "train"]
    last_s = max(span.end_s for span in spans)
    early_s = _seconds(clipped(training, window.began_s, round_over_s))
    came = planned.workers | report.rollout.joined.keys()
    return SeedingTimes(
        window_s=window.own_s,
        train_wait_s=max(0.0, window.took_s - window.own_s - early_s / num_ranks),
        remote_wait_s=max(0.0, report.finished_s - last_s),
        remote_s=last_s - min(span.start_s for span in spans),
        train_s=_seconds((span.start_s, span.end_s) for span in training) / num_ranks,
        num_own=len(report.plan.run.engines),
        num_workers=len(staying),
        is_steady=planned.workers == staying == came,
    )


def seeding_figures(
    window: WindowRecord, times: SeedingTimes | None, after: Seeding
) -> dict[str, float]:
    """The metrics of a step's seeding window; those that were not measured, and windows without a
    length, are left out. after: the state of seeding after the step."""
    figures: dict[str, float | None] = {
        "seeding/window_s": window.window_s,
        "seeding/own_s": window.own_s,
        "seeding/closed": float(window.closed_s is not None),
        "seeding/closed_early": float(window.is_early),
        "seeding/train_wait_s": None if times is None else times.train_wait_s,
        "seeding/elastic_worker_wait_s": None if times is None else times.remote_wait_s,
        "seeding/next_window_s": after.window_s,
        "seeding/elastic_workers_worth_holding": after.worth_holding,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _seconds(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(max(0.0, end_s - start_s) for start_s, end_s in intervals)
