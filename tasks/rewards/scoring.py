"""Score a round's responses as they finish, and record them.

    delivery ── finished ──▶ reward workers, or the judges' batcher ── verdict ──▶ delivery, journal

If the next round continues with a round's unfinished responses, their verdicts, pending or not yet
received, are left to it: the next round submits the same responses and joins the verdicts. All
other pending verdicts are cancelled when the round closes, or when the next one begins.
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
from tasks.rewards.judges.reward import JUDGE, JudgeConfig
from tasks.rewards.pool import PendingVerdict, RewardPool
from tasks.rewards.programs.adaptive_timeout import Anchor
from tasks.rewards.registry import RewardConfig, config_of, is_early_killed, timeouts_of
from tasks.scheduling.events import RoundPlan

JOURNAL_EVERY_S = 1.0  # recorded responses are written in batches, at least this far apart
MIN_FAILURES = 4  # a few failures are never a trend


class RewardBroken(RuntimeError):
    """The reward itself fails; the run stops."""


class Delivery(Protocol):
    """The rollout's side of the reward stage: responses come from it, verdicts go back."""

    async def arrived(self, wait_s: float) -> tuple[list[Generated], bool]:
        """Wait up to `wait_s` for finished responses; the flag says that none will follow."""
        ...

    async def tell(self, score: Score) -> None:
        """Hand a verdict back to the rollout."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringInputs:
    """The inputs of a round's scoring."""

    plan: RoundPlan  # the round
    is_evaluation: bool  # running times of held-out answers change no limits
    prompts: Mapping[str, Prompt]  # the round's prompts, by id
    rewards: Mapping[str, RewardConfig]  # by domain, "*" for the rest
    max_infra_fraction: float  # share of responses without a verdict above which the run stops
    devices: Mapping[str, str]  # device of every worker, for the timeline
    leaves_running: bool  # the next round continues with this round's pending verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """Counts and times of a round's scoring."""

    num_scored: int  # responses scored
    num_infra: int  # responses without a verdict
    first_infra: str  # the first such failure in words; empty if there was none
    num_timeouts: int  # responses whose program was ended by a time limit
    # responses whose program was ended before the longest limit, so that it may have been right
    num_early_kills: int
    # pending verdicts that were cancelled because no round needed them any more
    num_unneeded: int
    # running times of test cases, measured by second looks at programs of earlier rounds
    relearned: Mapping[str, Anchor]
    busy_s: float  # seconds of scoring, summed over the reward workers and the judges
    spans: tuple[Span, ...]  # when each verdict was scored; a judge's spans are on its own device
    judging: JudgingReport = field(default_factory=JudgingReport)  # the judges' part


async def score_round(
    inputs: ScoringInputs,
    delivery: Delivery,
    journal: Journal,
    pool: RewardPool,
    open_batcher: AbstractAsyncContextManager[JudgeBatcher],
) -> RewardReport:
    """Score responses as they arrive until none will follow: responses of judged domains by the
    batcher's judges, all others in the pool. Raises RewardBroken if too many have no verdict."""
    scoring = _Scoring(inputs, delivery, journal, pool)
    async with open_batcher as batcher:
        num_unneeded = await scoring.play(batcher)
    scoring.record()
    relearned = pool.relearned()
    if not inputs.is_evaluation:
        pool.look_again(scoring.scored)
    scores = [(prompt.domain, score) for prompt, _, score in scoring.scored]
    return _report(inputs, scores, num_unneeded, relearned, batcher.report)


@dataclass(slots=True)
class _Scoring:
    """State of a round's scoring."""

    _inputs: ScoringInputs
    _delivery: Delivery
    _journal: Journal
    _pool: RewardPool
    scored: list[tuple[Prompt, Generated, Score]] = field(default_factory=list)  # so far
    _num_recorded: int = 0  # of the scored ones
    _verdicts: list[PendingVerdict] = field(default_factory=list)  # submitted to the pool

    async def play(self, batcher: JudgeBatcher) -> int:
        """Score until no response will follow; returns how many pending verdicts nobody needed."""
        inputs = self._inputs
        num_unneeded = self._pool.drop_left(but_of=inputs.prompts)
        recorded_s = time.monotonic()
        closed = False
        waiting: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as tasks:
            while not closed:
                arrived, closed = await self._delivery.arrived(JOURNAL_EVERY_S)
                for generated in arrived:
                    scoring = tasks.create_task(self._score(generated, batcher))
                    waiting.add(scoring)
                    scoring.add_done_callback(waiting.discard)
                if time.monotonic() - recorded_s >= JOURNAL_EVERY_S:
                    self.record()
                    recorded_s = time.monotonic()
            num_unneeded += self._pool.drop_left()
            # the round is decided: pending verdicts are left to the next round, or cancelled
            if inputs.leaves_running:
                self._pool.leave(self._verdicts)
            else:
                num_unneeded += len(waiting)
            for scoring in waiting:
                scoring.cancel()
        return num_unneeded

    async def _score(self, generated: Generated, batcher: JudgeBatcher) -> None:
        inputs = self._inputs
        prompt = inputs.prompts[generated.prompt_id]
        judge = config_of(inputs.rewards, prompt.domain)
        if isinstance(judge, JudgeConfig):
            score = await batcher.score(judge, prompt, generated)
        else:
            verdict = self._pool.submit(prompt, generated)
            self._verdicts.append(verdict)
            score = await asyncio.wrap_future(verdict)
        if not inputs.is_evaluation:
            self._pool.times.learn(timeouts_of(inputs.rewards, [(prompt.domain, score)]))
        await self._delivery.tell(score)
        self.scored.append((prompt, generated, score))
        check_infra(inputs, [score for _, _, score in self.scored])

    def record(self) -> None:
        """Append to the journal the responses scored since the last call."""
        plan = self._inputs.plan
        new = self.scored[self._num_recorded :]
        self._num_recorded += len(new)
        rows = [
            ResponseRow(
                step=plan.step,
                kind=plan.kind,
                prompt=prompt,
                response=Response(generated=generated, score=score),
            )
            for prompt, generated, score in new
        ]
        self._journal.append(plan.step, rows)


def check_infra(inputs: ScoringInputs, scores: Sequence[Score]) -> None:
    """Raise RewardBroken if more than `max_infra_fraction` of the responses have no verdict."""
    plan, share = inputs.plan, inputs.max_infra_fraction
    launched = max(len(plan.prompts) * plan.launch_per_prompt, len(scores))
    failed = [score for score in scores if score.outcome is Outcome.INFRA]
    if len(failed) >= MIN_FAILURES and len(failed) > share * launched:
        scorer, detail = failed[0].scorer, failed[0].detail
        told = detail if detail.startswith(scorer) else f"{scorer}: {detail}"
        raise RewardBroken(
            f"rewards must reach a verdict for all but {share:.0%} of the responses,"
            f" {len(failed)} of {launched} of step {plan.step} have none"
            f" ({told}); mend the reward, or raise max_infra_fraction"
        )


def _report(
    inputs: ScoringInputs,
    verdicts: Sequence[tuple[str, Score]],
    num_unneeded: int,
    relearned: Mapping[str, Anchor],
    judging: JudgingReport,
) -> RewardReport:
    """The report of a round; `verdicts` are (domain, score)."""
    scores = [score for _, score in verdicts]
    infra = [score for score in scores if score.outcome is Outcome.INFRA]
    times = [  # a response that waits for a judge occupies no reward worker
        ("control", "reward", score.started_s, score.finished_s)
        for score in scores
        if score.scorer != JUDGE
    ]
    times += [(span.judge, span.judge, span.start_s, span.end_s) for span in judging.spans]
    spans = tuple(
        Span(device=inputs.devices[worker], actor=actor, kind="reward", start_s=start, end_s=end)
        for worker, actor, start, end in times
    )
    return RewardReport(
        num_scored=len(scores),
        num_infra=len(infra),
        first_infra=infra[0].detail if infra else "",
        num_timeouts=sum(score.outcome is Outcome.TIMEOUT for score in scores),
        num_early_kills=sum(
            is_early_killed(inputs.rewards, domain, score) for domain, score in verdicts
        ),
        num_unneeded=num_unneeded,
        relearned=relearned,
        busy_s=sum(span.end_s - span.start_s for span in spans),
        spans=spans,
        judging=judging,
    )
