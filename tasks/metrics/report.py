"""The report of a step, which combines the reports of its stages, and the step's seconds by stage.
Pure. `step_metrics` makes metrics of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

from artifacts.records import NO_UPDATE, Fate, Span
from artifacts.reports.timeline import attributed_s, length, stage_s, within
from tasks.learner.reports import AccumulateReport, GradientReport, PolicyReport, PublishReport
from tasks.rewards.scoring import RewardReport
from tasks.rounds.report import RolloutReport
from tasks.run.run_context import StepPlan

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
        """Tokens by column of the ledger: generated ones by fate, and those that judges wrote. If
        the update was not applied, trained tokens count as `NO_UPDATE`, unless a critic learned
        from them."""
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
