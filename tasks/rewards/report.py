"""What the reward stage says of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from artifacts.records import Outcome, Score, Span
from tasks.rewards.judges.batcher import JudgingReport
from tasks.rewards.judges.reward import JUDGE
from tasks.rewards.programs.adaptive_timeout import Anchor
from tasks.rewards.registry import RewardConfig, is_early_killed


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """What scoring did in a round."""

    num_scored: int  # responses scored
    num_infra: int  # of them without a verdict
    first_infra: str  # the first such failure in words; empty if there was none
    num_timeouts: int  # of them ended by a time limit
    # of those ended before the longest limit, so that they may have been right
    num_early_kills: int
    # responses whose verdict no group waited for when the round was decided, or the one before it
    num_unneeded: int
    # what second looks at programs of earlier rounds told of running times
    relearned: Mapping[str, Anchor]
    busy_s: float  # seconds of scoring, added over the reward workers and the judges
    spans: tuple[Span, ...]  # when scoring went on, a judge's on its own device
    # what the judges were asked and said
    judging: JudgingReport = field(default_factory=JudgingReport)


def reward_report(
    verdicts: Sequence[tuple[str, Score]],
    rewards: Mapping[str, RewardConfig],
    devices: Mapping[str, str],
    *,
    num_unneeded: int,
    relearned: Mapping[str, Anchor],
    judging: JudgingReport,
) -> RewardReport:
    """The report of a round; `verdicts` with their domains, `devices` by worker."""
    scores = [score for _, score in verdicts]
    infra = [score for score in scores if score.outcome is Outcome.INFRA]
    spans = (*_spans_here(scores, devices["control"]), *_judge_spans(judging, devices))
    return RewardReport(
        num_scored=len(scores),
        num_infra=len(infra),
        first_infra=infra[0].detail if infra else "",
        num_timeouts=sum(score.outcome is Outcome.TIMEOUT for score in scores),
        num_early_kills=sum(is_early_killed(rewards, domain, score) for domain, score in verdicts),
        num_unneeded=num_unneeded,
        relearned=relearned,
        busy_s=sum(span.end_s - span.start_s for span in spans),
        spans=spans,
        judging=judging,
    )


def _spans_here(scores: Sequence[Score], device: str) -> tuple[Span, ...]:
    """When reward workers scored; a response that waits for a judge keeps none busy."""
    return tuple(
        Span(
            device=device,
            actor="reward",
            kind="reward",
            start_s=score.started_s,
            end_s=score.finished_s,
        )
        for score in scores
        if score.scorer != JUDGE
    )


def _judge_spans(judging: JudgingReport, devices: Mapping[str, str]) -> tuple[Span, ...]:
    return tuple(
        Span(
            device=devices[span.judge],
            actor=span.judge,
            kind="reward",
            start_s=span.start_s,
            end_s=span.end_s,
        )
        for span in judging.spans
    )
