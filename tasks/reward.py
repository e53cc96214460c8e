"""The reward stage: one coordinator task that scores every response as soon as it is finished, and
records it.

    sample buffer ─▶ reward workers, or the judges' desk ─▶ verdict
    ─▶ sample buffer, and the step's journal
"""

from __future__ import annotations

import asyncio

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts.commit import read_commits
from tasks.rewards.judges.reward import judge_of
from tasks.rewards.pool import RewardPool, pool_of
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes, from_record
from tasks.rewards.scoring import RewardReport, ScoringInputs, score_round
from tasks.run.judging import batcher_of
from tasks.run.plan import StepPlan, journal_of
from tasks.run.prompts import prompts_of
from tasks.run.run_context import RunContext
from tasks.run.sample_stream import SampleStream, StreamDelivery, aborting


@task(
    name="score-responses",
    task_run_name="reward-{plan.round.kind}-{plan.step}",
    cache_policy=NO_CACHE,
)
def score_responses(plan: StepPlan) -> RewardReport:
    """Score the round's responses until its rollout ends."""
    stream = SampleStream.connect(plan)
    return asyncio.run(aborting(stream, "reward", _score(plan, stream)))


async def _score(plan: StepPlan, stream: SampleStream) -> RewardReport:
    return await score_round(
        scoring_inputs(plan),
        StreamDelivery(stream),
        journal_of(plan),
        pool_for(plan.run),
        batcher_of(plan),
    )


def scoring_inputs(plan: StepPlan) -> ScoringInputs:
    """What the round is scored with. One that is read back may have asked what does not fit any
    more: nothing of that comes to be scored."""
    run, asked = plan.run, plan.round.candidates
    if not plan.is_evaluation:
        asked = tuple(ref for ref in asked if ref.row not in run.unfit)
    return ScoringInputs(
        plan=plan.round,
        is_evaluation=plan.is_evaluation,
        prompts=prompts_of(run, asked),
        rewards=run.rewards,
        max_infra_fraction=run.max_infra_fraction,
        devices=run.devices,
        leaves_running=plan.leaves_running or plan.round.pauses,
    )


def pool_for(run: RunContext) -> RewardPool:
    """The run's reward workers in this process; a fresh process begins with what the committed
    steps tell of running times."""

    def make() -> RewardPool:
        book = MeasuredTimes()
        for commit in read_commits(run.open_store()):
            book.learn(from_record(commit.timeouts))
        scored_here = {
            domain: config for domain, config in run.rewards.items() if judge_of(config) is None
        }
        return RewardPool(scored_here, run.reward_workers, book)

    return pool_of(run.run_id, make)
