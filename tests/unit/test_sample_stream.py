"""Which failure of a round is the cause, that the buffer's rounds come in order, and how many
verdicts are on their way to it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from itertools import pairwise

from plan_factories import make_step_plan

from artifacts.records import Outcome, Score
from tasks.engines.base import EngineLost
from tasks.run.sample_buffer import STAGES, Record, RoundAborted, Stage
from tasks.run.sample_stream import (
    MAX_TELLING,
    SampleStream,
    StreamDelivery,
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


class BusyStream(SampleStream):
    """Counts those who hand something on at the same time."""

    def __init__(self) -> None:
        self.num_told = self.most_at_once = self._now = 0

    async def put(self, stage: Stage[Record], records: Sequence[Record]) -> None:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        self.num_told += len(records)


def test_verdicts_that_come_at_once_are_told_a_few_at_a_time() -> None:
    """Each takes its process a connection, and a thousand of them every file it may open."""
    stream = BusyStream()
    delivery = StreamDelivery(stream)

    async def tell_many() -> None:
        await asyncio.gather(*(delivery.tell(SCORE) for _ in range(2000)))

    asyncio.run(tell_many())
    assert (stream.num_told, stream.most_at_once) == (2000, MAX_TELLING)
