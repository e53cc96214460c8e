"""Scores a round's responses as they finish, and records them.

delivery ── finished ──▶ reward workers, or the judges' desk ── verdict ──▶ delivery, journal

A round that the next one goes on from leaves the reward workers' verdicts to it, those that nobody
has heard of in time and those that are still to be reached: it submits the same responses and joins
them. What it does not go on with is given up when it begins, or when it closes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from artifacts.journal import Journal
from artifacts.records import Generated, Outcome, Prompt, Response, Score, Span
from artifacts.tables import ResponseRow
from tasks.rewards.judges.batcher import JudgeBatcher, JudgingReport
from tasks.rewards.judges.reward import JUDGE, judge_of
from tasks.rewards.pool import PendingVerdict, RewardPool
from tasks.rewards.programs.adaptive_timeout import Anchor
from tasks.rewards.registry import RewardConfig, config_of, is_early_killed, timeouts_of
from tasks.scheduling.events import RoundPlan

JOURNAL_EVERY_S = 1.0  # recorded responses are written in batches, at least this far apart
MIN_FAILURES = 4  # a few failures are never a trend


class RewardBroken(RuntimeError):
    """The reward itself fails; the run stops."""


class Delivery(Protocol):
    """The rollout as the reward stage sees it."""

    async def arrived(self, wait_s: float) -> tuple[list[Generated], bool]:
        """Finished responses after waiting wait_s at most, and whether none will follow."""
        ...

    async def tell(self, score: Score) -> None:
        """Hand a verdict back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringInputs:
    """Everything a round is scored with."""

    plan: RoundPlan  # the round
    is_evaluation: bool  # nothing is learned from held-out answers
    prompts: Mapping[str, Prompt]  # the round's prompts, by id
    rewards: Mapping[str, RewardConfig]  # by domain, "*" for the rest
    max_infra_fraction: float  # share of responses without a verdict above which the run stops
    devices: Mapping[str, str]  # device of every worker, for the timeline
    leaves_running: bool  # whether the next round goes on with what this one leaves undecided


async def score_round(
    inputs: ScoringInputs,
    delivery: Delivery,
    journal: Journal,
    pool: RewardPool,
    opening: AbstractAsyncContextManager[JudgeBatcher],
) -> RewardReport:
    """Score what comes until nothing will follow; judged domains at the desk that `opening` gives,
    the others in the pool. Raises RewardBroken."""
    scoring = _Scoring(inputs, delivery, journal, pool)
    async with opening as desk:
        num_unneeded = await scoring.play(desk)
    scoring.record()
    report = reward_report(
        scoring.verdicts(),
        inputs.rewards,
        inputs.devices,
        num_unneeded=num_unneeded,
        relearned=pool.relearned(),
        judging=desk.report,
    )
    if not inputs.is_evaluation:
        pool.look_again(scoring.executed())
    return report


class _Scoring:
    """What has been scored so far, and how much of it is recorded."""

    def __init__(
        self, inputs: ScoringInputs, delivery: Delivery, journal: Journal, pool: RewardPool
    ) -> None:
        self._inputs = inputs
        self._delivery = delivery
        self._journal = journal
        self._pool = pool
        self._scored: list[Response] = []
        self._num_recorded = 0
        self._verdicts: list[PendingVerdict] = []  # of the reward workers

    async def play(self, desk: JudgeBatcher) -> int:
        """Score until nothing will follow; how many verdicts nobody waited for any more."""
        num_unneeded = self._pool.drop_left(but_of=self._inputs.prompts)
        recorded_s = time.monotonic()
        closed = False
        waiting: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as tasks:
            while not closed:
                arrived, closed = await self._delivery.arrived(JOURNAL_EVERY_S)
                for generated in arrived:
                    scoring = tasks.create_task(self._score(generated, desk))
                    waiting.add(scoring)
                    scoring.add_done_callback(waiting.discard)
                if time.monotonic() - recorded_s >= JOURNAL_EVERY_S:
                    self.record()
                    recorded_s = time.monotonic()
            num_unneeded += self._pool.drop_left()
            return num_unneeded + self._end(waiting)

    async def _score(self, generated: Generated, desk: JudgeBatcher) -> None:
        prompt = self._inputs.prompts[generated.prompt_id]
        judge = judge_of(config_of(self._inputs.rewards, prompt.domain))
        if judge is not None:
            score = await desk.score(judge, prompt, generated)
        else:
            verdict = self._pool.submit(prompt, generated)
            self._verdicts.append(verdict)
            score = await asyncio.wrap_future(verdict)
        if not self._inputs.is_evaluation:
            self._pool.book.learn(timeouts_of(self._inputs.rewards, [(prompt.domain, score)]))
        await self._delivery.tell(score)
        self._scored.append(Response(generated=generated, score=score))
        check_infra(self._inputs, self._scored)

    def _end(self, waiting: set[asyncio.Task[None]]) -> int:
        """The round is decided: leave its verdicts to the next one, or give up on those that no
        group waits for. Returns how many were given up."""
        if self._inputs.leaves_running:
            self._pool.leave(self._verdicts)
        for scoring in waiting:
            scoring.cancel()
        return 0 if self._inputs.leaves_running else len(waiting)

    def record(self) -> None:
        """Append to the journal what has been scored since the last time."""
        new = self._scored[self._num_recorded :]
        self._num_recorded += len(new)
        self._journal.append(self._inputs.plan.step, [self._row(response) for response in new])

    def _row(self, response: Response) -> ResponseRow:
        return ResponseRow(
            step=self._inputs.plan.step,
            kind=self._inputs.plan.kind,
            prompt=self._inputs.prompts[response.generated.prompt_id],
            response=response,
        )

    def executed(self) -> list[tuple[Prompt, Generated, Score]]:
        """Every verdict with what it is about."""
        prompts = self._inputs.prompts
        return [
            (prompts[response.generated.prompt_id], response.generated, response.score)
            for response in self._scored
            if response.score is not None
        ]

    def verdicts(self) -> list[tuple[str, Score]]:
        """Every verdict with its domain."""
        return [(prompt.domain, score) for prompt, _, score in self.executed()]


def check_infra(inputs: ScoringInputs, scored: Sequence[Response]) -> None:
    """Raise RewardBroken when too many responses have no verdict: training on the rest would only
    look healthy."""
    plan, share = inputs.plan, inputs.max_infra_fraction
    launched = max(len(plan.prompts) * plan.launch_per_prompt, len(scored))
    scores = [response.score for response in scored if response.score is not None]
    failed = [score for score in scores if score.outcome is Outcome.INFRA]
    if len(failed) >= MIN_FAILURES and len(failed) > share * launched:
        raise RewardBroken(
            f"rewards must reach a verdict for all but {share:.0%} of the responses,"
            f" {len(failed)} of {launched} of step {plan.step} have none"
            f" ({failed[0].scorer}: {failed[0].detail}); mend the reward, or raise"
            " max_infra_fraction"
        )


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
