"""The reward stage: one coordinator task that scores every response as soon as it is finished, and
records it.

sample buffer -> reward workers, or the judges' desk -> verdict -> sample buffer, and the step's
journal
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts.commit import read_commits
from artifacts.journal import Journal
from artifacts.records import Generated, Outcome, Prompt, Response, Score, Span
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tasks.judging import desk_of
from tasks.plan import StepPlan, journal_of, prompts_of
from tasks.rewards.judges.desk import JudgeDesk, JudgingReport
from tasks.rewards.judges.reward import JUDGE, JudgeConfig
from tasks.rewards.pool import RewardPool, pool_of
from tasks.rewards.programs.adaptive_timeout import Anchor, TimeoutBook, from_record
from tasks.rewards.registry import config_of, is_early_killed, timeouts_of
from tasks.sample_stream import SampleStream, aborting

JOURNAL_EVERY_S = 1.0  # recorded responses are written in batches, at least this far apart


MIN_FAILURES = 4  # a few failures are never a trend


class RewardBroken(RuntimeError):
    """The reward itself fails; the run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """What scoring did in a round."""

    num_scored: int  # responses scored
    num_infra: int  # of them without a verdict
    first_infra: str  # the first such failure in words; empty if there was none
    num_timeouts: int  # of them ended by a time limit
    num_early_kills: (
        int  # of those ended before the longest limit, so that they may have been right
    )
    num_unneeded: int  # responses whose verdict no group waited for when the round was decided
    relearned: Mapping[
        str, Anchor
    ]  # what second looks at programs of earlier rounds told of running times
    busy_s: float  # seconds of scoring, added over the reward workers and the judges
    spans: tuple[Span, ...]  # when scoring went on, a judge's on its own device
    judging: JudgingReport = field(
        default_factory=JudgingReport
    )  # what the judges were asked and said


@task(
    name="score-responses",
    task_run_name="reward-{plan.round.kind}-{plan.step}",
    cache_policy=NO_CACHE,
    tags=["reward"],
)
def score_responses(plan: StepPlan) -> RewardReport:
    """Score the round's responses until its rollout ends."""
    stream = SampleStream.connect(plan)
    return asyncio.run(
        aborting(
            stream,
            "reward",
            score_round(plan, stream, journal_of(plan), pool_for(plan), desk_of(plan)),
        )
    )


def pool_for(plan: StepPlan) -> RewardPool:
    """The run's reward workers in this process; a fresh process begins with what the committed
    steps tell of running times."""
    run = plan.run

    def make() -> RewardPool:
        commits = read_commits(Store.open(run.artifact_root).child(run.run_id))
        book = TimeoutBook()
        for commit in commits:
            book.learn(from_record(commit.timeouts))
        scored_here = {
            domain: config
            for domain, config in run.rewards.items()
            if not isinstance(config, JudgeConfig)
        }
        return RewardPool(scored_here, run.reward_workers, book)

    return pool_of(run.run_id, make)


async def score_round(
    plan: StepPlan,
    stream: SampleStream,
    journal: Journal,
    pool: RewardPool,
    opening: AbstractAsyncContextManager[JudgeDesk],
) -> RewardReport:
    """Score what comes until the stream closes; judged domains at the desk that `opening` gives,
    the others in the pool."""
    prompts = prompts_of(plan.run, plan.round.candidates)
    scored: list[Response] = []

    async def score_one(generated: Generated) -> None:
        prompt = prompts[generated.prompt_id]
        config = config_of(plan.run.rewards, prompt.domain)
        if isinstance(config, JudgeConfig):
            score = await desk.score(config, prompt, generated)
        else:
            score = await asyncio.wrap_future(pool.submit(prompt, generated))
        if not plan.is_evaluation:
            pool.book.learn(timeouts_of(plan.run.rewards, [(prompt.domain, score)]))
        await stream.put("scores", [score])
        scored.append(Response(generated=generated, score=score))
        check_infra(plan, scored)

    num_recorded, recorded_s, closed = 0, time.monotonic(), False
    waiting: set[asyncio.Task[None]] = set()
    async with opening as desk, asyncio.TaskGroup() as tasks:
        while not closed:
            arrived, closed = await stream.take("generated", max_items=256, wait_s=JOURNAL_EVERY_S)
            for generated in arrived:
                waiting.add(scoring := tasks.create_task(score_one(generated)))
                scoring.add_done_callback(waiting.discard)
            if time.monotonic() - recorded_s >= JOURNAL_EVERY_S:
                num_recorded, recorded_s = (
                    _record(plan, journal, prompts, scored, num_recorded),
                    time.monotonic(),
                )
        num_unneeded = _drop(waiting)
    _record(plan, journal, prompts, scored, num_recorded)
    report = _report(plan, prompts, scored, num_unneeded, pool.relearned(), desk.report)
    if not plan.is_evaluation:
        verdicts = ((one.generated, one.score) for one in scored if one.score is not None)
        pool.look_again(
            [(prompts[generated.prompt_id], generated, score) for generated, score in verdicts]
        )
    return report


def _drop(waiting: set[asyncio.Task[None]]) -> int:
    """Give up on verdicts that no group waits for: the round is decided. Returns how many."""
    for scoring in waiting:
        scoring.cancel()
    return len(waiting)


def check_infra(plan: StepPlan, scored: Sequence[Response]) -> None:
    """Raise RewardBroken when too many responses have no verdict: training on the rest would only
    look healthy."""
    launched = max(len(plan.round.prompts) * plan.round.launch_per_prompt, len(scored))
    failed = [
        one.score for one in scored if one.score is not None and one.score.outcome is Outcome.INFRA
    ]
    if len(failed) >= MIN_FAILURES and len(failed) > plan.run.max_infra_fraction * launched:
        raise RewardBroken(
            f"rewards must reach a verdict for all but {plan.run.max_infra_fraction:.0%} of the"
            f" responses, {len(failed)} of {launched} of step {plan.step} have none"
            f" ({failed[0].scorer}: {failed[0].detail}); mend the reward, or raise"
            " max_infra_fraction"
        )


def _record(
    plan: StepPlan,
    journal: Journal,
    prompts: dict[str, Prompt],
    scored: list[Response],
    num_recorded: int,
) -> int:
    """Append what has been scored since the last time; returns how many are recorded now."""
    num_scored = len(scored)
    journal.append(
        plan.step, [_row(plan, prompts, response) for response in scored[num_recorded:num_scored]]
    )
    return num_scored


def _row(plan: StepPlan, prompts: dict[str, Prompt], response: Response) -> ResponseRow:
    return ResponseRow(
        step=plan.step,
        kind=plan.round.kind,
        prompt=prompts[response.generated.prompt_id],
        response=response,
    )


def _report(
    plan: StepPlan,
    prompts: dict[str, Prompt],
    scored: Sequence[Response],
    num_unneeded: int,
    relearned: Mapping[str, Anchor],
    judging: JudgingReport,
) -> RewardReport:
    verdicts = [
        (prompts[one.generated.prompt_id].domain, one.score)
        for one in scored
        if one.score is not None
    ]
    scores = [score for _, score in verdicts]
    infra = [score for score in scores if score.outcome is Outcome.INFRA]
    spans = (*_spans_here(plan, scores), *_judge_spans(plan, judging))
    return RewardReport(
        num_scored=len(scores),
        num_infra=len(infra),
        first_infra=infra[0].detail if infra else "",
        num_timeouts=sum(score.outcome is Outcome.TIMEOUT for score in scores),
        num_early_kills=sum(
            is_early_killed(plan.run.rewards, domain, score) for domain, score in verdicts
        ),
        num_unneeded=num_unneeded,
        relearned=relearned,
        busy_s=sum(span.end_s - span.start_s for span in spans),
        spans=spans,
        judging=judging,
    )


def _spans_here(plan: StepPlan, scores: Sequence[Score]) -> tuple[Span, ...]:
    """When reward workers scored; a response that waits for a judge keeps none busy."""
    device = plan.run.devices["control"]
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


def _judge_spans(plan: StepPlan, judging: JudgingReport) -> tuple[Span, ...]:
    devices = plan.run.devices
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
