"""Simulated steps whose rounds go on while earlier steps train."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from simulated_run_factories import MACHINE, make_run

from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.steps import play

AHEAD = AsynchronousConfig(async_ratio=1.0)
SPLIT = make_run(
    policy=AHEAD, num_steps=6, learner_devices=2, machine=replace(MACHINE, token_s=0.002)
)


def test_overlapped_steps_are_exact_and_make_up_the_run() -> None:
    played = play(SPLIT)
    assert played == play(SPLIT)
    trained = [prompt for step in played.steps for prompt in step.trained]
    assert len(trained) == len(set(trained)) == 6 * 8
    for step in played.steps:
        assert step.num_trained_responses == 8 * 4
        assert sum(step.parts_s.values()) == pytest.approx(step.step_s)
    for before, after in pairwise(played.steps):
        assert before.end_s == after.start_s
    generated, booked = played.total("num_generated"), 0
    booked = sum(sum(step.tokens.values()) for step in played.steps)
    assert generated == pytest.approx(booked, abs=6 * 8 * 4)


def test_overlapping_is_faster_and_hides_training() -> None:
    one_by_one, overlapped = (
        play(replace(SPLIT, policy=policy)) for policy in (SyncConfig(), AHEAD)
    )
    assert overlapped.total("step_s") < one_by_one.total("step_s")
    assert overlapped.total("train_s") < one_by_one.total("train_s")
    assert overlapped.total("tokens_trained") == one_by_one.total("tokens_trained")


def test_with_the_stream_trainer_groups_are_trained_as_they_are_accepted() -> None:
    streamed = play(replace(SPLIT, stream_trainer=StreamTrainerConfig(enabled=True)))
    assert streamed.total("num_streamed") > 0 == play(SPLIT).total("num_streamed")
    assert streamed.total("step_s") <= play(SPLIT).total("step_s")


def test_shared_devices_and_a_planner_are_refused() -> None:
    for wrong in ({"learner_devices": 0}, {"planner": PlannerConfig(enabled=True)}):
        with pytest.raises(ValueError, match="devices that train alone"):
            play(replace(SPLIT, **wrong))
