"""A round that is decided while a response is still being scored: its verdict is given up, or left
to the next round, which does not ask for it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from plan_factories import CONTEXT

from artifacts.datasets.tiny_mix import TinyMixConfig
from artifacts.journal import Journal
from artifacts.judgements import JudgementCache
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.records import Generated, Score
from artifacts.store import Store
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.reward import scoring_inputs
from tasks.rewards.custom import CustomConfig
from tasks.rewards.judges.batcher import JudgeBatcher
from tasks.rewards.pool import RewardPool
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes
from tasks.rewards.scoring import RewardReport, score_round
from tasks.run.run_context import StepPlan
from tasks.run.sample_buffer import GENERATED, SCORED
from tests.unit.judge_factories import make_generated, make_prompt
from tests.unit.test_judged_round import opened_stream, round_over

OWN = """
def own(prompt, response, gold):
    if response == "endless":
        open(ENTERED, "w").close()
        while True: pass
    return 1
"""
COUNTED = """
import os
def counted(prompt, response, gold):
    with open(CALLS, "a") as calls: calls.write(response + " ")
    while response == "slow" and not os.path.exists(GATE): pass
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
        deadlines=CONTEXT.deadlines.model_copy(update={"call_s": 30.0}),
    )
    return round_over(run)


@asynccontextmanager
async def no_judges() -> AsyncIterator[JudgeBatcher]:
    yield JudgeBatcher((), JudgementCache(), max_batch=1)


async def decided(
    plan: StepPlan, pool: RewardPool, answers: Sequence[Generated], is_time: Callable[[], bool]
) -> tuple[RewardReport, list[Score]]:
    """A round that is closed when it is time and one of its responses, if it has any, is scored."""
    stream = await opened_stream(plan)
    await stream.put(GENERATED, answers)
    journal = Journal(Store.open(plan.run.artifact_root))
    scoring = asyncio.create_task(
        score_round(scoring_inputs(plan), stream, journal, pool, no_judges())
    )
    heard: list[Score] = []
    if answers:
        heard, _ = await stream.take(SCORED, max_items=1, wait_s=WAIT_S)
    async with asyncio.timeout(WAIT_S):
        while not is_time():
            await asyncio.sleep(0)
    await stream.close(GENERATED)
    async with asyncio.timeout(WAIT_S):
        return await scoring, heard


def test_the_next_round_waits_for_nothing_that_the_last_one_gave_up(tmp_path: Path) -> None:
    source, entered = tmp_path / "own.py", tmp_path / "entered"
    source.write_text(OWN.replace("ENTERED", repr(str(entered))))
    reward = CustomConfig(path=f"{source}:own", timeout_s=600.0)
    plan, pool = plan_with(tmp_path, reward), RewardPool({"*": reward}, 1, MeasuredTimes())
    answers = [make_generated("short", 0), make_generated("endless", 1)]
    report, _ = asyncio.run(decided(plan, pool, answers, entered.exists))
    assert (report.num_scored, report.num_unneeded) == (1, 1)
    asked = pool.submit(make_prompt(), make_generated("short"))
    assert asked.result(WAIT_S).reward == 1.0
    pool.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A round that was closed while its second response was being scored, and that is gone on with:
    its plan, the workers, what the reward was called for, and the file that lets it go on."""

    plan: StepPlan
    pool: RewardPool
    calls: Path
    gate: Path

    @property
    def next_plan(self) -> StepPlan:
        return replace(self.plan, round=replace(self.plan.round, step=2))


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Left]:
    source, calls, gate = tmp_path / "own.py", tmp_path / "calls", tmp_path / "gate"
    names = {"CALLS": repr(str(calls)), "GATE": repr(str(gate))}
    source.write_text(COUNTED.replace("CALLS", names["CALLS"]).replace("GATE", names["GATE"]))
    reward = CustomConfig(path=f"{source}:counted", timeout_s=600.0)
    plan = replace(plan_with(tmp_path, reward), leaves_running=True)
    pool = RewardPool({"*": reward}, 1, MeasuredTimes())
    answers = [make_generated("short", 0), make_generated("slow", 1)]
    report, _ = asyncio.run(
        decided(plan, pool, answers, lambda: calls.exists() and "slow" in calls.read_text())
    )
    assert (report.num_scored, report.num_unneeded) == (1, 0)
    yield Left(plan=plan, pool=pool, calls=calls, gate=gate)
    pool.close()


def test_a_verdict_that_is_left_to_the_next_round_is_not_asked_again(left: Left) -> None:
    left.gate.touch()
    slow = [make_generated("slow", 1)]
    report, heard = asyncio.run(decided(left.next_plan, left.pool, slow, lambda: True))
    assert [score.reward for score in heard] == [1.0]
    assert (report.num_scored, report.num_unneeded) == (1, 0)
    assert left.calls.read_text() == "short slow "


def test_a_verdict_that_no_round_heard_in_time_is_not_asked_again(left: Left) -> None:
    short = [make_generated("short", 0)]
    _, heard = asyncio.run(decided(left.next_plan, left.pool, short, lambda: True))
    assert [score.reward for score in heard] == [1.0]
    assert left.calls.read_text() == "short slow "


def test_another_attempt_at_a_left_response_is_asked_for(left: Left) -> None:
    left.gate.touch()
    again = [replace(make_generated("slow", 1), attempt=7)]
    asyncio.run(decided(left.next_plan, left.pool, again, lambda: True))
    assert left.calls.read_text() == "short slow slow "


def test_a_left_verdict_that_the_next_round_does_not_go_on_with_is_given_up(left: Left) -> None:
    """Its worker, the only one, is free again."""
    others = tuple(asked for asked in left.plan.round.prompts if asked.prompt_id != "0/0")
    plan = replace(left.next_plan, round=replace(left.next_plan.round, prompts=others))
    other = [replace(make_generated("short", 0), prompt_id=others[0].prompt_id)]
    report, heard = asyncio.run(decided(plan, left.pool, other, lambda: True))
    assert [score.reward for score in heard] == [1.0]
    assert (report.num_scored, report.num_unneeded) == (1, 1)


def test_a_left_verdict_that_is_asked_for_by_nobody_is_given_up_at_the_close(left: Left) -> None:
    report, _ = asyncio.run(decided(left.next_plan, left.pool, [], lambda: True))
    assert report.num_unneeded == 1
    asked = left.pool.submit(make_prompt(), make_generated("short", 3))
    assert asked.result(WAIT_S).reward == 1.0


def test_a_round_that_is_read_back_may_have_asked_what_does_not_fit_any_more(
    tmp_path: Path,
) -> None:
    """It was closed by an attempt whose engines had more room: all of it is scored."""
    plan = plan_with(tmp_path, CustomConfig(path=f"{tmp_path / 'own.py'}:own"))
    names = [ref.prompt_id for ref in plan.round.candidates]
    assert [*scoring_inputs(plan).prompts] == names
    cramped = plan.run.engine.model_copy(update={"max_model_len": 257})
    rows = frozenset(ref.row for ref in plan.round.candidates)
    later = replace(plan, run=replace(plan.run, engine=cramped, unfit=rows))
    assert scoring_inputs(later).prompts == {}
