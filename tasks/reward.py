"""The reward stage: one coordinator task that scores every response as soon as it is finished, and
records the verdict in the sample buffer and the step's journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts.commit import read_commits
from artifacts.judgements import JudgementCache
from tasks.rewards.judges.batcher import JudgeBatcher
from tasks.rewards.judges.engine import RemoteJudge
from tasks.rewards.judges.reward import JudgeConfig, judge_engine_of
from tasks.rewards.pool import RewardPool, pool_of
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes, from_record
from tasks.rewards.scoring import RewardReport, ScoringInputs, score_round
from tasks.run.prompts import prompts_of
from tasks.run.run_context import EVALUATION, RunContext, StepPlan, journal_of, store_of
from tasks.run.sample_stream import SampleStream, aborting


@task(
    name="score-responses",
    task_run_name="reward-{plan.round.kind}-{plan.step}",
    cache_policy=NO_CACHE,
)
def score_responses(plan: StepPlan) -> RewardReport:
    """Score the round's responses until its rollout ends."""
    stream = SampleStream.connect(plan)

    async def score() -> RewardReport:
        pool, batcher = pool_for(plan.run), batcher_of(plan)
        return await score_round(scoring_inputs(plan), stream, journal_of(plan), pool, batcher)

    return asyncio.run(aborting(stream, "reward", score()))


def scoring_inputs(plan: StepPlan) -> ScoringInputs:
    """The inputs of the reward stage. A recorded round that is read back may name prompts that no
    longer fit the context: responses to these are not scored."""
    run, refs = plan.run, plan.round.candidates
    if not plan.is_evaluation:
        refs = tuple(ref for ref in refs if ref.row not in run.unfit)
    return ScoringInputs(
        plan=plan.round,
        is_evaluation=plan.is_evaluation,
        prompts=prompts_of(run, refs),
        rewards=run.rewards,
        max_infra_fraction=run.max_infra_fraction,
        devices=run.devices,
        leaves_running=plan.leaves_running or plan.round.pauses,
    )


def pool_for(run: RunContext) -> RewardPool:
    """The pool of reward workers that this process keeps for the run. A new pool starts with the
    running times that committed steps recorded."""

    def make() -> RewardPool:
        times = MeasuredTimes()
        for commit in read_commits(run.open_store()):
            times.learn(from_record(commit.timeouts))
        scored_here = {
            domain: config
            for domain, config in run.rewards.items()
            if not isinstance(config, JudgeConfig)
        }
        return RewardPool(scored_here, run.reward_workers, times)

    return pool_of(run.run_id, make)


_caches: dict[str, JudgementCache] = {}  # the verdicts of the run that this process works for


def cache_of(run: RunContext) -> JudgementCache:
    """The judges' verdicts of the run, read once per process and extended by every round."""
    if run.run_id not in _caches:
        _caches.clear()
        store = run.open_store()
        _caches[run.run_id] = JudgementCache.read((store, store.child(EVALUATION)))
    return _caches[run.run_id]


@asynccontextmanager
async def batcher_of(plan: StepPlan) -> AsyncIterator[JudgeBatcher]:
    """The judge batcher of a round; its judgements are saved when the block ends. In a run without
    judges it has none and is never called."""
    run = plan.run
    engine = judge_engine_of(run.rewards)
    if engine is None:
        yield JudgeBatcher((), JudgementCache(), max_batch=1)
        return
    cache = cache_of(run).of_round()
    judges = [RemoteJudge(run.run_id, name, engine.call_deadline_s) for name in run.judges]
    try:
        async with JudgeBatcher(judges, cache, max_batch=engine.max_num_seqs) as batcher:
            yield batcher
    finally:
        cache.save(store_of(plan), plan.step)
