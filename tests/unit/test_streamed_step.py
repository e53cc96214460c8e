"""A whole step on a virtual clock: engines, policy, migration and learners together, and what the
stream trainer saves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_run_factories import PlainWorkload

from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.figures import PlayedStep
from tasks.simulation.hardware import DEVICES
from tasks.simulation.machine import Machine, TrainingCost
from tasks.simulation.plain import PlainMachine
from tasks.simulation.shapes import MODELS
from tasks.simulation.simulated_run import SimulatedRun
from tasks.simulation.steps import play

ON = StreamTrainerConfig(enabled=True)
MACHINE = PlainMachine(num_devices=4, max_batch=64, device_tokens=40_000, weights_tokens=0)
WORK = PlainWorkload(longest_tokens=2000, lengths=LengthModel(median_tokens=120, sigma=1.2))
BATCH = BatchConfig(prompts_per_step=24, responses_per_prompt=4)


def both(train_share: float) -> tuple[PlayedStep, PlayedStep]:
    """A step without the stream trainer and with it, training having this share of the first."""

    def second_step(token_s: float, stream_trainer: StreamTrainerConfig) -> PlayedStep:
        """The first step knows no lengths of earlier responses."""
        run = SimulatedRun(
            machine=replace(MACHINE, token_s=token_s),
            work=WORK,
            policy=SyncConfig(),
            batch=BATCH,
            num_steps=2,
            stream_trainer=stream_trainer,
        )
        return play(run).steps[1]

    slow = second_step(1.0, StreamTrainerConfig())
    token_s = train_share / (1 - train_share) * slow.rollout_s * MACHINE.num_devices
    token_s /= slow.train_device_s
    return second_step(token_s, StreamTrainerConfig()), second_step(token_s, ON)


@pytest.mark.parametrize("train_share", [0.1, 0.25, 0.5])
def test_training_on_freed_devices_shortens_the_step(train_share: float) -> None:
    without, streamed = both(train_share)
    assert set(without.trained) == set(streamed.trained)
    assert (without.num_streamed, without.num_migrated) == (0, 0)
    assert without.train_s / without.step_s == pytest.approx(train_share, rel=0.2)
    assert streamed.num_streamed > 0
    assert streamed.num_migrated > 0
    assert streamed.step_s < without.step_s


def test_training_fills_the_tail_where_there_is_enough_of_it() -> None:
    without, streamed = both(0.5)
    assert streamed.bubbles["tail"] < 0.8 * without.bubbles["tail"]


def learner_run(stream_trainer: StreamTrainerConfig, is_one_response: bool = True) -> SimulatedRun:
    """A run on four H800, two of which train together."""
    training = TrainingCost(tensor=2, is_one_response=is_one_response)
    machine = Machine(
        model=MODELS["qwen2.5-7b"], device=DEVICES["h800"], num_devices=4, training=training
    )
    return SimulatedRun(
        machine=machine,
        work=WORK,
        policy=SyncConfig(),
        batch=BATCH,
        num_steps=2,
        stream_trainer=stream_trainer,
        devices_per_rank=2,
    )


def test_a_response_that_is_a_micro_batch_takes_as_long_as_its_operations_take_to_start() -> None:
    run = learner_run(StreamTrainerConfig())
    step = play(run).steps[0]
    token_s, least_s = run.machine.train_s_per_token(), run.machine.train_s_per_response()
    alone_s = [
        token_s * (group.prompt_tokens + tokens)
        for group in step.groups
        for tokens in group.response_tokens
    ]
    assert min(alone_s) < least_s < max(alone_s)
    taken_s = sum(max(least_s, seconds) for seconds in alone_s)
    assert step.train_device_s == pytest.approx(taken_s, rel=1e-3)
    packed = play(learner_run(StreamTrainerConfig(), is_one_response=False)).steps[0]
    assert packed.train_device_s < step.train_device_s


def test_gradients_of_freed_ranks_come_back_before_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step_of(stream_trainer: StreamTrainerConfig, reload_s: float) -> PlayedStep:
        monkeypatch.setattr(Machine, "reload_s", lambda machine: reload_s)
        return play(learner_run(stream_trainer)).steps[1]

    streamed = step_of(ON, 0.0)
    assert streamed.num_streamed > 0
    assert step_of(ON, 50.0).step_s - streamed.step_s == pytest.approx(50.0)
    plain = StreamTrainerConfig()
    assert step_of(plain, 50.0).step_s == pytest.approx(step_of(plain, 0.0).step_s)
