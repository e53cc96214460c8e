"""A round that is decided while a response is still being scored: nothing of it goes on into the
next round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from plan_factories import CONTEXT

from artifacts.datasets.choice import TinyMixConfig
from artifacts.journal import Journal
from artifacts.judgements import JudgementCache
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.store import Store
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.plan import StepPlan
from tasks.reward import scoring_inputs
from tasks.rewards.custom import CustomConfig
from tasks.rewards.judges.desk import JudgeDesk
from tasks.rewards.pool import RewardPool
from tasks.rewards.programs.adaptive_timeout import TimeoutBook
from tasks.rewards.report import RewardReport
from tasks.rewards.scoring import score_round
from tasks.sample_buffer import GENERATED, SCORED
from tasks.sample_stream import StreamDelivery
from tests.unit.judge_factories import make_generated, make_prompt
from tests.unit.test_judged_round import opened_stream, round_over

OWN = """
def own(prompt, response, gold):
    if response == "endless":
        open(ENTERED, "w").close()
        while True: pass
    return 1
"""
WAIT_S = 60.0


def plan_with(root: Path, reward: CustomConfig) -> StepPlan:
    character_tokenizer().save_pretrained(root / "model")
    run = replace(
        CONTEXT,
        artifact_root=str(root),
        task=TinyMixConfig(num_prompts=4, heldout_prompts=1),
        rewards={"*": reward},
        model_path=str(root / "model"),
        engine=VllmEngineConfig(max_model_len=10_000),
        deadlines=CONTEXT.deadlines.model_copy(update={"engine_call_s": 30.0}),
    )
    return round_over(run)


@asynccontextmanager
async def no_judges() -> AsyncIterator[JudgeDesk]:
    yield JudgeDesk((), JudgementCache(), max_batch=1)


async def decided_early(plan: StepPlan, pool: RewardPool, entered: Path) -> RewardReport:
    """A round that is closed once its first response is scored and its second one is at it."""
    stream = await opened_stream(plan)
    await stream.put(GENERATED, [make_generated("short", 0), make_generated("endless", 1)])
    journal = Journal(Store.open(plan.run.artifact_root))
    scoring = asyncio.create_task(
        score_round(scoring_inputs(plan), StreamDelivery(stream), journal, pool, no_judges())
    )
    await stream.take(SCORED, max_items=1, wait_s=WAIT_S)
    async with asyncio.timeout(WAIT_S):
        while not entered.exists():
            await asyncio.sleep(0)
    await stream.close(GENERATED)
    async with asyncio.timeout(WAIT_S):
        return await scoring


def test_the_next_round_waits_for_nothing_that_the_last_one_gave_up(tmp_path: Path) -> None:
    source, entered = tmp_path / "own.py", tmp_path / "entered"
    source.write_text(OWN.replace("ENTERED", repr(str(entered))))
    reward = CustomConfig(path=f"{source}:own", timeout_s=600.0)
    plan, pool = plan_with(tmp_path, reward), RewardPool({"*": reward}, 1, TimeoutBook())
    report = asyncio.run(decided_early(plan, pool, entered))
    assert (report.num_scored, report.num_unneeded) == (1, 1)
    asked = pool.submit(make_prompt(), make_generated("short"))
    assert asked.result(WAIT_S).reward == 1.0
    pool.close()
