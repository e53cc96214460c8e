"""Which failure of a round is the cause, that the buffer's rounds come in order, and how the
coordinators of a process reach it."""

from __future__ import annotations

import asyncio
import pickle
from itertools import pairwise

import pytest
from plan_factories import CONTEXT, make_step_plan

from artifacts.records import Outcome, Score
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost
from tasks.run.sample_buffer import SCORED, STAGES, RoundAborted
from tasks.run.sample_stream import (
    CAPACITIES,
    BufferActor,
    SampleStream,
    root_cause,
    round_key,
)

ECHO = RoundAborted("reward failed")
LOST = EngineLost("engine-0 is gone")
WRONG = ValueError("no such domain")
SCORE = Score(
    prompt_id="row-1",
    index=0,
    reward=1.0,
    outcome=Outcome.OK,
    detail="",
    scorer="sum",
    started_s=0.0,
    finished_s=0.0,
)


def test_a_single_failure_is_its_own_cause() -> None:
    assert root_cause(LOST) is LOST
    assert root_cause(ECHO) is ECHO


def test_the_cause_of_a_group_is_the_first_that_is_no_echo() -> None:
    assert root_cause(ExceptionGroup("tasks", [ECHO, LOST, WRONG])) is LOST


def test_causes_are_found_below_nested_groups() -> None:
    inner = ExceptionGroup("inner", [ECHO, WRONG])
    assert (
        root_cause(
            ExceptionGroup(
                "outer", [ExceptionGroup("echoes", [ECHO, ECHO]), ExceptionGroup("deep", [inner])]
            )
        )
        is WRONG
    )
    assert (
        root_cause(
            BaseExceptionGroup("outer", [ExceptionGroup("echoes", [ECHO]), KeyboardInterrupt()])
        ).__class__
        is KeyboardInterrupt
    )


def test_of_echoes_alone_the_first_is_the_cause() -> None:
    assert (
        root_cause(
            ExceptionGroup("outer", [ExceptionGroup("inner", [ECHO]), RoundAborted("later")])
        )
        is ECHO
    )


def test_buffer_rounds_come_in_the_order_they_are_opened() -> None:
    """Attempts at a step, then attempts at the evaluation after it, then the next step; step 0 has
    an evaluation alone."""
    opened = [make_step_plan(0, "evaluate", attempt) for attempt in (1, 2)]
    for step in (1, 2, 3):
        opened += [make_step_plan(step, "short", attempt) for attempt in (1, 2, 3, 4)]
        opened += [make_step_plan(step, "evaluate", attempt) for attempt in (1, 2, 3, 4)]
    opened.append(make_step_plan(4, "drain", 1))
    keys = [round_key(plan) for plan in opened]
    assert keys[0] > 0
    assert all(before < after for before, after in pairwise(keys))


def test_a_stage_is_the_same_one_in_every_process() -> None:
    assert {stage: pickle.loads(pickle.dumps(stage)) for stage in STAGES} == {
        stage: stage for stage in STAGES
    }


async def test_coordinators_in_other_threads_reach_the_buffer_of_their_process() -> None:
    plan, buffer = make_step_plan(1, "short", 1), BufferActor(CAPACITIES, CONTEXT.run_id)
    with pytest.raises(ActorLost, match="not in this process"):
        SampleStream.connect(plan)
    await buffer.open_round(round_key(plan))

    async def tell() -> None:
        await SampleStream.connect(plan).tell(SCORE)

    await asyncio.to_thread(lambda: asyncio.run(tell()))
    assert await SampleStream.connect(plan).scored(1.0) == [SCORE]
    await buffer.close()
    with pytest.raises(ActorLost, match="not in this process"):
        SampleStream.connect(plan)


async def test_a_wait_that_is_over_raises_what_the_buffer_says() -> None:
    plan, buffer = make_step_plan(1, "short", 1), BufferActor(CAPACITIES, CONTEXT.run_id)
    await buffer.open_round(round_key(plan))
    stream = SampleStream.connect(plan)
    await stream.abort("engine-0 was lost")
    with pytest.raises(RoundAborted, match="engine-0 was lost"):
        await asyncio.to_thread(lambda: asyncio.run(stream.take(SCORED, 1)))
    await buffer.close()
