"""Which failure of a round is the cause, and that the buffer's rounds come in order."""

from __future__ import annotations

import pickle
from itertools import pairwise

from plan_factories import make_step_plan

from tasks.engines.base import EngineLost
from tasks.sample_buffer import STAGES, RoundAborted
from tasks.sample_stream import root_cause, round_key

ECHO = RoundAborted("reward failed")
LOST = EngineLost("engine-0 is gone")
WRONG = ValueError("no such domain")


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
