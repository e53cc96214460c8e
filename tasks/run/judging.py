"""The judges of a run as the reward stage sees them: the desk of a round, over the verdicts that
the run has already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from artifacts.judgements import JudgementCache
from tasks.rewards.judges.batcher import JudgeBatcher
from tasks.rewards.judges.engine import RemoteJudge
from tasks.rewards.judges.reward import judge_engine_of
from tasks.run.plan import EVALUATION, StepPlan, store_of
from tasks.run.run_context import RunContext

_caches: dict[str, JudgementCache] = {}  # the verdicts of the run that this process works for


def cache_of(run: RunContext) -> JudgementCache:
    """The run's verdicts: read back once per process, then kept up by every round."""
    if run.run_id not in _caches:
        _caches.clear()
        store = run.open_store()
        _caches[run.run_id] = JudgementCache.read((store, store.child(EVALUATION)))
    return _caches[run.run_id]


@asynccontextmanager
async def batcher_of(plan: StepPlan) -> AsyncIterator[JudgeBatcher]:
    """The desk of a round; what judges said is kept when it closes. Without judges it has none and
    is never asked."""
    run = plan.run
    engine = judge_engine_of(run.rewards)
    if engine is None:
        yield JudgeBatcher((), JudgementCache(), max_batch=1)
        return
    cache = cache_of(run).of_round()
    judges = [RemoteJudge.connect(run.run_id, name, engine.call_deadline_s) for name in run.judges]
    try:
        async with JudgeBatcher(judges, cache, max_batch=engine.max_num_seqs) as desk:
            yield desk
    finally:
        cache.save(store_of(plan), plan.step)
