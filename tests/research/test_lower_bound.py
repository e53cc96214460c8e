"""The lower bound of simulated steps: closed forms, and nothing below it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_run_factories import AT_ONCE, MACHINE, WORK, make_run

from research.ablations.over_sampling import OverSamplingConfig
from research.paper.lower_bound import Resources, lower_bound, needed_groups, resources_of
from tasks.engines.simulation.pace import Pace
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.multilevel import MultilevelBatchingConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.figures import TrainedGroup
from tasks.simulation.plain import PlainMachine
from tasks.simulation.steps import play

PACE = Pace(
    step_s=0.01, step_s_per_sequence=0.001, prefill_s_per_token=0.0, max_batch=4, kv_tokens=10**6
)
RESOURCES = Resources(
    paces={1: PACE},
    num_devices=2,
    rank_devices=1,
    train_s_per_token=0.0,
    free_s=0.0,
    update_s=3.0,
)


def group(*response_tokens: int) -> TrainedGroup:
    return TrainedGroup(prompt_tokens=0, response_tokens=response_tokens)


def test_long_responses_share_a_step() -> None:
    groups = [group(100), group(1000), group(10), group(900)]
    bound = lower_bound(RESOURCES, groups, prompts_per_step=2)
    assert bound.latency_s == pytest.approx(0.01 * (1000 + 100))
    assert bound.update_s == 2 * 3.0
    assert bound.seconds == pytest.approx(0.01 * 1100 + 6.0)


def test_many_equal_responses_take_the_time_of_full_batches() -> None:
    groups = [group(100)] * 80
    bound = lower_bound(RESOURCES, groups, prompts_per_step=80)
    batches = 80 / 4 / 2  # of each device
    assert bound.work_s == pytest.approx(batches * 100 * (0.01 + 3 * 0.001))


def test_no_more_responses_run_than_a_step_trains() -> None:
    """Two at a time on two devices: nothing is gained by the batch of four."""
    bound = lower_bound(RESOURCES, [group(100)] * 20, prompts_per_step=2)
    assert bound.work_s == pytest.approx(10 * 100 * 0.01, rel=0.02)
    assert bound.work_s <= bound.latency_s * (1 + 1e-9)


def test_a_long_response_waits_for_short_ones_beside_it() -> None:
    """One device: a hundred steps of two responses, and 900 of the long one."""
    alone = replace(RESOURCES, num_devices=1)
    bound = lower_bound(alone, [group(1000, 100)], prompts_per_step=1)
    assert bound.work_s == pytest.approx(100 * 0.011 + 900 * 0.01, rel=1e-3)
    assert bound.latency_s < bound.work_s <= 100 * 0.011 + 900 * 0.01


def test_equal_lengths_take_as_long_as_their_batches() -> None:
    """Eight on two devices are four on each: smaller batches leave too much to the other."""
    bound = lower_bound(RESOURCES, [group(*[500] * 8)], prompts_per_step=1)
    assert bound.work_s == pytest.approx(500 * (0.01 + 3 * 0.001), rel=0.01)


def test_long_responses_of_different_groups_share_a_step() -> None:
    """Of each rank no more tokens than in the best steps: those of the two long groups together."""
    together = [group(1000, 10), group(1000, 10), group(10, 10), group(10, 10)]
    apart = [group(1000, 1000), group(10, 10), group(10, 10), group(10, 10)]
    few = replace(RESOURCES, num_devices=1)
    shared = lower_bound(few, together, prompts_per_step=2)
    assert shared.work_s == pytest.approx(990 * 0.011 + 20 * 0.013, rel=0.01)
    assert shared.work_s == pytest.approx(lower_bound(few, apart, 2).work_s, rel=0.01)


def test_training_and_generating_share_the_devices() -> None:
    slow = replace(RESOURCES, train_s_per_token=0.5)
    bound = lower_bound(slow, [group(100)] * 80, prompts_per_step=80)
    generating_s = 8000 * (0.01 + 3 * 0.001) / 4
    assert bound.work_s == pytest.approx((generating_s + 0.5 * 8000) / 2)


def test_a_larger_engine_shortens_the_longest_response() -> None:
    fast = replace(PACE, step_s=0.005)
    both = replace(RESOURCES, paces={1: PACE, 2: fast})
    assert lower_bound(both, [group(1000)], 1).latency_s == pytest.approx(5.0)


def test_equal_lengths_on_one_device_reach_it() -> None:
    run = make_run(
        machine=PlainMachine(num_devices=1, devices_per_host=1, updating_s=1.0),
        work=replace(
            WORK,
            num_prompt_tokens=1,
            lengths=LengthModel(median_tokens=1000, sigma=0.0),
            rewards=AT_ONCE,
        ),
        batch=BatchConfig(prompts_per_step=8, responses_per_prompt=8),
    )
    played = play(run)
    bound = lower_bound(resources_of(run), needed_groups(run, 24), 8)
    assert bound.seconds <= played.total("step_s") <= 1.01 * bound.seconds


def test_what_is_needed_is_what_synchronous_steps_train() -> None:
    run = make_run()
    trained = [group for step in play(run).steps for group in step.groups]
    needed = needed_groups(run, len(trained))
    assert sorted(trained, key=str) == sorted(needed, key=str)


POLICIES: tuple[Policy, ...] = (
    SyncConfig(),
    TailBatchingConfig(),
    TailBatchingConfig(response_overprovision=1.5),
    MultilevelBatchingConfig(prompt_overprovision=1.5),
    OverSamplingConfig(prompt_overprovision=1.5),
)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_nothing_is_below_it(policy: Policy, seed: int, streams: bool) -> None:
    run = make_run(
        policy=policy,
        seed=seed,
        num_steps=6,
        work=replace(WORK, rewards=AT_ONCE),
        machine=replace(MACHINE, token_s=0.0002 * (1 + 9 * seed)),
        stream_trainer=StreamTrainerConfig(enabled=streams, max_freed_share=0.75),
    )
    steps = play(run).steps
    groups = [group for step in steps for group in step.groups]
    bound = lower_bound(resources_of(run), groups, run.batch.prompts_per_step)
    assert bound.seconds <= sum(step.step_s for step in steps)
