"""Whole steps on a virtual clock: what they train, what their seconds and tokens add up to, and
closed forms."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise

import pytest
from plan_factories import span
from simulated_run_factories import AT_ONCE, MACHINE, WORK, make_run

from artifacts.records import Generated
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.cluster import Placement
from tasks.simulation.figures import left_share
from tasks.simulation.plain import PlainMachine
from tasks.simulation.steps import play

STREAMING = StreamTrainerConfig(enabled=True)
POLICIES: tuple[Policy, ...] = (
    SyncConfig(),
    TailBatchingConfig(),
    TailBatchingConfig(response_overprovision=1.5),
    AsynchronousConfig(at_update="pause"),
)


def test_the_same_run_comes_out_the_same_and_another_seed_otherwise() -> None:
    run = make_run(policy=TailBatchingConfig(), stream_trainer=STREAMING)
    assert play(run) == play(run)
    assert play(run) != play(replace(run, seed=1))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_step_trains_its_groups_and_every_prompt_is_trained_once(policy: Policy) -> None:
    played = play(make_run(policy=policy, stream_trainer=STREAMING, num_steps=6))
    trained = [prompt for step in played.steps for prompt in step.trained]
    assert len(trained) == len(set(trained))
    assert {prompt for step in played.steps for prompt in step.deferred} <= set(trained)
    for step in played.planned.steps:
        assert len(step.trained) == 8
        assert step.num_trained_responses == 8 * 4


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_parts_sum_to_the_step_and_steps_follow_each_other(policy: Policy) -> None:
    played = play(make_run(policy=policy, stream_trainer=STREAMING))
    assert played.steps[0].start_s == 0
    for before, after in pairwise(played.steps):
        assert before.end_s == after.start_s
    for step in played.steps:
        assert sum(step.parts_s.values()) == pytest.approx(step.step_s)
        assert step.parts_s["idle"] == pytest.approx(0)
        assert (step.parts_s["update"], step.parts_s["publish"]) == pytest.approx((3.0, 2.0))
        assert 0 < sum(step.bubbles.values()) < 1


def test_tokens_are_those_that_the_engines_counted() -> None:
    for step in play(make_run()).steps:
        assert step.tokens_trained == sum(step.tokens.values()) == step.num_generated
    for step in play(make_run(policy=TailBatchingConfig(), stream_trainer=STREAMING)).steps:
        # a response that is stopped within a decode step loses the token that it was at
        num_stopped = step.num_migrated + 10 * 4
        assert 0 <= step.num_generated - sum(step.tokens.values()) <= num_stopped
        assert step.tokens_trained < step.num_generated or step.kind != "short"


def test_one_device_and_equal_lengths_take_what_arithmetic_says() -> None:
    machine = PlainMachine(
        num_devices=1, devices_per_host=1, updating_s=3.0, publishing_s=2.0, freeing_s=0.5
    )
    lengths = LengthModel(median_tokens=400, sigma=0.0)
    work = replace(WORK, lengths=lengths, rewards=AT_ONCE)
    (step,) = play(make_run(machine=machine, work=work, num_steps=1)).steps
    num_responses = 8 * 4
    decode_s = 400 * (machine.fixed_s + machine.weights_s + 0.0001 * (num_responses - 1))
    prefill_s = num_responses * 50 * machine.prefill_s_per_token
    assert step.rollout_s == pytest.approx(decode_s + prefill_s, rel=0.01)
    assert step.train_s == pytest.approx(machine.token_s * (num_responses * 400 + 8 * 50), rel=0.01)
    assert step.step_s == pytest.approx(step.rollout_s + 0.5 + step.train_s + 3 + 2, rel=0.01)
    assert (step.longest_tokens, step.num_preemptions) == (400, 0)
    assert [group.prompt_tokens for group in step.groups] == [50] * 8


@pytest.mark.parametrize("policy", [SyncConfig(), TailBatchingConfig()], ids=str)
def test_a_longer_bound_is_never_faster(policy: Policy) -> None:
    bounds = (200, 500, 1000, 2000)
    works = [replace(WORK, longest_tokens=bound, rewards=AT_ONCE) for bound in bounds]
    runs = [play(make_run(policy=policy, work=work, num_steps=5)).planned for work in works]
    seconds = [run.mean("rollout_s") for run in runs]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_more_devices_are_never_slower(policy: Policy, streams: bool) -> None:
    """Not even where each takes its time to go over to training."""
    taken_s = [
        play(
            make_run(
                policy=policy,
                batch=BatchConfig(prompts_per_step=32, responses_per_prompt=4),
                machine=replace(MACHINE, num_devices=num_devices, freeing_s=2.0),
                stream_trainer=StreamTrainerConfig(enabled=streams),
            )
        ).mean("step_s")
        for num_devices in (4, 16, 64)
    ]
    for fewer_s, more_s in pairwise(taken_s):
        assert more_s < 1.02 * fewer_s, taken_s


def test_more_memory_is_never_slower() -> None:
    rooms = (2_100, 4_000, 8_000, 100_000)
    machines = [replace(MACHINE, device_tokens=2_000 + room) for room in rooms]
    work = replace(WORK, lengths=LengthModel(median_tokens=600, sigma=0.5))
    runs = [play(make_run(machine=machine, work=work, num_steps=2)) for machine in machines]
    seconds = [run.mean("rollout_s") for run in runs]
    assert seconds == sorted(seconds, reverse=True)
    assert runs[0].total("num_preemptions") > runs[-1].total("num_preemptions") == 0


def test_rewards_after_the_rollout_are_waited_for() -> None:
    overlapped, last = (
        play(make_run(policy=SyncConfig(reward_timing=timing)))
        for timing in ("per_response", "after_rollout")
    )
    for hidden, waited in zip(overlapped.steps, last.steps, strict=True):
        assert set(hidden.trained) == set(waited.trained)
        assert hidden.rollout_s == pytest.approx(waited.rollout_s)
        assert hidden.reward_s < waited.reward_s == pytest.approx(waited.reward_wait_s)


def test_freed_devices_train_while_others_generate() -> None:
    machine = replace(MACHINE, token_s=0.005)
    plain = play(make_run(machine=machine))
    streamed = play(make_run(machine=machine, stream_trainer=STREAMING))
    assert plain.total("num_streamed") == plain.total("num_freed") == 0
    assert streamed.total("num_streamed") > 0
    assert streamed.total("num_migrated") > 0
    assert streamed.mean("step_s") < plain.mean("step_s")
    assert streamed.mean("train_device_s") == pytest.approx(plain.mean("train_device_s"), rel=0.05)


def test_rounds_that_pause_put_no_answer_off_and_generate_nothing_twice() -> None:
    """Devices generate and train in turn; a step takes what is complete first, within the bound,
    and its round goes on with what those before it left."""
    policy = AsynchronousConfig(at_update="pause", extra_lag=2)
    plain, paused = play(make_run(num_steps=6)), play(make_run(policy=policy, num_steps=6))
    assert paused.mean("step_s") < plain.mean("step_s")
    assert paused.total("tokens_trained") == plain.total("tokens_trained")
    # a response that is stopped within a decode step loses the token that it was at
    num_lost = paused.total("num_generated") - paused.total("tokens_trained")
    assert 0 <= num_lost <= 5 * 8 * 4


def test_the_planner_rebuilds_engines_when_preemptions_jump() -> None:
    work = replace(WORK, growth=1.5, lengths=LengthModel(median_tokens=100, sigma=1.0))
    machine = replace(MACHINE, device_tokens=5_000)
    run = make_run(
        machine=machine, work=work, num_steps=8, planner=PlannerConfig(enabled=True),
        knows_profile=False,
    )  # fmt: skip
    played = play(run)
    sizes = [step.tensor_parallel_size for step in played.steps]
    assert sizes[0] == 1 < max(sizes)
    for before, after in pairwise(played.steps):
        has_changed = before.tensor_parallel_size != after.tensor_parallel_size
        assert after.relayout_s == pytest.approx(5.0 if has_changed else 0.0)


def test_learners_on_devices_of_their_own_take_nobodys_time_to_change_over() -> None:
    played = play(make_run(learner_devices=2, devices_per_rank=2))
    for step in played.steps:
        assert step.parts_s["free"] == 0
        assert step.bubbles["tail"] >= 0.5 * step.rollout_s / step.step_s  # half of them wait
        assert step.train_device_s == pytest.approx(2 * step.train_s)


def test_reserved_devices_do_nothing() -> None:
    fewer = replace(MACHINE, num_devices=3, devices_per_host=3)
    reserved = play(make_run(reserved_devices=1, machine=replace(MACHINE, devices_per_host=4)))
    assert reserved == play(make_run(machine=fewer))


@pytest.mark.parametrize(
    "wrong", [{"num_learner": 4}, {"num_learner": 3, "devices_per_rank": 2}], ids=str
)
def test_devices_without_a_use_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="some devices must generate"):
        Placement(num_devices=4, **wrong)


def test_totals_are_of_the_planned_steps_and_the_drain_is_left_out() -> None:
    played = play(make_run(policy=TailBatchingConfig(), num_steps=8))
    planned = played.planned
    assert [step.step for step in planned.after(5).steps] == [6, 7, 8]
    assert len(played.steps) > len(planned.steps)
    assert planned.tokens_per_s == pytest.approx(
        planned.total("tokens_trained") / planned.total("step_s")
    )


def test_more_devices_are_faster() -> None:
    batch = BatchConfig(prompts_per_step=16, responses_per_prompt=4)
    machines = [replace(MACHINE, num_devices=num) for num in (4, 8, 16)]
    seconds = [play(make_run(machine=one, batch=batch)).mean("step_s") for one in machines]
    assert seconds == sorted(seconds, reverse=True)


def test_no_response_outlives_its_step() -> None:
    alive: list[int] = []

    def count(plan: RoundPlan, scheduler: RoundScheduler) -> RoundScheduler:
        gc.collect()
        alive.append(sum(type(held) is Generated for held in gc.get_objects()))
        return scheduler

    play(make_run(policy=TailBatchingConfig(drain=False), stream_trainer=STREAMING, watch=count))
    assert set(alive) == {alive[0]}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((), 0.0),  # every group of the step was dropped: nothing was trained
        ((("sleep", 7.0),), 0.5),
        ((("train", 2.0), ("train", 10.0)), 1.0),  # the step before still trained
        ((("train", 10.0),), 0.0),
    ],
)
def test_the_share_of_a_rollout_that_is_left_is_one_at_most(
    others: tuple[tuple[str, float], ...], expected: float
) -> None:
    kinds = (("rollout", 4.0), *others)
    assert left_share([span(kind, start_s, 10.0) for kind, start_s in kinds]) == expected
