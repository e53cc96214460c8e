"""A round of tiny-mix whose stories are judged and whose sums and letters follow the rule: from the
sample buffer to the report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plan_factories import CONTEXT

from artifacts.datasets.tiny_mix import TinyMixConfig
from artifacts.journal import Journal
from artifacts.judgements import JudgementCache
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.records import Outcome, WeightsRef
from artifacts.store import Store
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.reward import scoring_inputs
from tasks.rewards.judges.batcher import JudgeBatcher
from tasks.rewards.maths.math_answer import MathAnswerConfig
from tasks.rewards.pool import RewardPool
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes
from tasks.rewards.scoring import RewardReport, score_round
from tasks.run.prompts import dataset_of
from tasks.run.run_context import RunContext, StepPlan
from tasks.run.sample_buffer import GENERATED, SCORED, SampleBuffer
from tasks.run.sample_stream import (
    CAPACITIES,
    LocalBuffer,
    SampleStream,
    round_key,
)
from tasks.scheduling.events import PromptRef, RoundPlan
from tests.unit.judge_factories import RuleJudge, make_config, make_generated

NUM_PROMPTS = 12


def judged_run(root: Path) -> RunContext:
    character_tokenizer().save_pretrained(root / "model")
    return replace(
        CONTEXT,
        artifact_root=str(root),
        task=TinyMixConfig(num_prompts=NUM_PROMPTS, heldout_prompts=2),
        rewards={"story": make_config(), "*": MathAnswerConfig()},
        model_path=str(root / "model"),
        engine=VllmEngineConfig(max_model_len=10_000),
        devices={**CONTEXT.devices, "judge-0": "cpu:1"},
        judges=("judge-0",),
        deadlines=CONTEXT.deadlines.model_copy(update={"call_s": 30.0}),
    )


def round_over(run: RunContext) -> StepPlan:
    rows = dataset_of(run).rows
    prompts = tuple(
        PromptRef(prompt_id=f"0/{place}", domain=row.domain) for place, row in enumerate(rows)
    )
    planned = RoundPlan(
        step=1,
        kind="sync",
        prompts=prompts,
        launch_per_prompt=2,
        accept_prompts=len(rows),
        accept_per_prompt=2,
        quotas=(),
    )
    return StepPlan(
        run=run, round=planned, weights=WeightsRef(version=0, path="", digest=""), attempt=1
    )


async def opened_stream(plan: StepPlan) -> SampleStream:
    """A buffer of its own, open for this round."""
    buffer = SampleBuffer(CAPACITIES)
    await buffer.open_round(round_key(plan))
    return SampleStream(LocalBuffer(buffer, asyncio.get_running_loop()), round_key(plan))


async def scored(plan: StepPlan, journal: Journal, judge: RuleJudge) -> RewardReport:
    """Every prompt answered once rightly and once wrongly."""
    stream = await opened_stream(plan)
    golds = {f"0/{place}": row.gold for place, row in enumerate(dataset_of(plan.run).rows)}
    answers = [
        replace(
            make_generated(f"Answer: {gold if index == 0 else int(gold) + 1}", index),
            prompt_id=prompt_id,
        )
        for prompt_id, gold in golds.items()
        for index in (0, 1)
    ]
    await stream.put(GENERATED, answers)
    pool = RewardPool({"*": MathAnswerConfig()}, 1, MeasuredTimes())
    batcher = JudgeBatcher([judge], JudgementCache(), max_batch=64)
    scoring = asyncio.create_task(score_round(scoring_inputs(plan), stream, journal, pool, batcher))
    for _ in answers:
        await stream.take(SCORED, max_items=1, wait_s=10)
    await stream.close(GENERATED)
    report = await scoring
    pool.close()
    return report


def test_a_mix_of_rules_and_a_judge_is_scored_by_domain(tmp_path: Path) -> None:
    plan, judge = round_over(judged_run(tmp_path)), RuleJudge()
    journal = Journal(Store.open(str(tmp_path / "run")))
    report = asyncio.run(scored(plan, journal, judge))
    rows = journal.read(1)
    by_scorer: Mapping[str, set[str]] = {
        scorer: {
            row.prompt.domain
            for row in rows
            if row.response.score and row.response.score.scorer == scorer
        }
        for scorer in ("judge", "math_answer")
    }
    assert by_scorer == {"judge": {"story"}, "math_answer": {"add", "letters"}}
    assert all(
        row.response.score and row.response.score.reward == 1 - row.response.generated.index
        for row in rows
    )
    num_judged = sum(row.prompt.domain == "story" for row in rows)
    assert (report.num_scored, report.num_infra) == (2 * NUM_PROMPTS, 0)
    assert (report.judging.num_calls, report.judging.num_agreed, report.judging.num_yes) == (
        num_judged,
        num_judged,
        num_judged // 2,
    )
    assert {(span.device, span.actor) for span in report.spans} == {
        ("host", "reward"),
        ("cpu:1", "judge-0"),
    }
    assert {row.response.score.outcome for row in rows if row.response.score} == {
        Outcome.OK,
        Outcome.WRONG,
    }
