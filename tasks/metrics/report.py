"""The report of a step, which combines the reports of its stages; its seconds by stage, and the
times that seeding learns from. Pure. `step_metrics` makes metrics of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

from artifacts.records import NO_UPDATE, Fate, Span
from artifacts.reports.timeline import attributed_s, clipped, length, stage_s, within
from tasks.learner.reports import AccumulateReport, GradientReport, PolicyReport, PublishReport
from tasks.rewards.scoring import RewardReport
from tasks.rounds.report import RolloutReport, WindowRecord
from tasks.run.run_context import StepPlan
from tasks.scheduling.seeding import Seeding, SeedingTimes

STAGES = ("rollout", "reward", "train", "update", "publish", "orchestration")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The reports of all stages of a step."""

    plan: StepPlan
    rollout: RolloutReport
    reward: RewardReport
    gradients: GradientReport
    policy: PolicyReport
    published: PublishReport
    started_s: float  # Unix seconds
    finished_s: float  # Unix seconds
    turn_s: float = 0.0  # Unix seconds from which on the step might have trained
    held_s: float = 0.0  # seconds its update waited for the evaluation of the weights before it
    # when the engines were rebuilt for this step, as "wake" of their devices
    relayout: tuple[Span, ...] = ()

    @property
    def window(self) -> tuple[float, float]:
        """Beginning and end of the step, Unix seconds."""
        return self.started_s, self.finished_s

    @property
    def duration_s(self) -> float:
        return self.finished_s - self.started_s

    @property
    def rollout_s(self) -> float:
        """Seconds of the step in which at least one engine generated."""
        return stage_s(self.spans, "rollout", *self.window)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Timeline spans of all devices, over all stages of the step."""
        return (
            *self.relayout,
            *self.rollout.spans,
            *self.reward.spans,
            *self.gradients.spans,
            *self.policy.spans,
            *self.published.spans,
        )

    @property
    def trained(self) -> AccumulateReport:
        """The report of gradient accumulation, summed over all ranks."""
        return reduce(add, self.gradients.ranks, AccumulateReport())

    @property
    def ledger(self) -> dict[str, int]:
        """Tokens by column of the ledger. If the update was not applied, trained tokens count as
        `NO_UPDATE`, unless a critic learned from them."""
        tokens = {**self.rollout.tokens, Fate.JUDGED: self.reward.judging.new_tokens, NO_UPDATE: 0}
        update = self.policy.update
        if not update.applied and update.critic is None:
            tokens[NO_UPDATE] = tokens.get(Fate.TRAINED, 0)
            tokens[Fate.TRAINED] = 0
        return tokens


def stage_times(report: StepReport) -> dict[str, float]:
    """Seconds of the step by stage, and the rest as orchestration. A moment in which several stages
    work counts for the first of these in `STAGES`, so that the seconds sum to the step."""
    times, rest_s = attributed_s(report.spans, STAGES[:-1], *report.window)
    return times | {STAGES[-1]: rest_s}


def reward_exposed_s(report: StepReport) -> float:
    """Seconds of the step in which its round waited only for verdicts (`reward_waits`)."""
    return length(within(report.rollout.reward_waits, *report.window))


def seeding_times(report: StepReport, staying: frozenset[str]) -> SeedingTimes | None:
    """The measured times of a step; clocks are assumed to agree. None if no elastic worker
    generated anything, or if the step took several attempts, whose times do not belong together.
    staying: names of the elastic workers that are present at the end of the step."""
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
