"""A machine's costs by closed forms, and beside the published figures that calibrated them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from record_factories import make_request
from simulated_run_factories import step_s

from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.layout_planner import Demand, ThroughputProfile
from tasks.simulation.hardware import DEVICES
from tasks.simulation.machine import ROLLPACKER, Machine, TrainingCost
from tasks.simulation.shapes import MODELS

SMALL = Machine(model=MODELS["qwen2.5-7b"], device=DEVICES["h800"], num_devices=16)
PAPER = LengthModel(median_tokens=550, sigma=1.0)  # P75 1,080; longest of 1,024 about 27 medians
PROMPT_TOKENS = 250


async def generate(
    config: SimulatedEngineConfig,
    num_engines: int = 1,
    num_prompts: int = 1,
    responses_per_prompt: int = 8,
    longest: int = 8_192,
) -> tuple[float, int, int]:
    """Seconds, tokens and preemptions of prompts that are dealt out to engines."""
    engines = [SimulatedEngine(f"engine-{place}", config) for place in range(num_engines)]
    for row in range(num_prompts):
        requests = [
            make_request(
                f"0/{row}", index, prompt_tokens=(1,) * PROMPT_TOKENS, max_new_tokens=longest
            )
            for index in range(responses_per_prompt)
        ]
        await engines[row % num_engines].submit(requests)
    num_tokens = num_preemptions = 0
    for place, engine in enumerate(engines):
        left = responses_per_prompt * len(range(place, num_prompts, num_engines))
        while left:
            responses = await engine.collect(1e6)
            left -= len(responses)
            num_tokens += sum(len(response.token_ids) for response in responses)
        num_preemptions += (await engine.stats()).num_preemptions
    return asyncio.get_running_loop().time(), num_tokens, num_preemptions


def of_length(machine: Machine, size: int, tokens: int) -> SimulatedEngineConfig:
    lengths = LengthModel(median_tokens=tokens, sigma=0)
    return machine.engine(size).model_copy(update={"lengths": lengths})


@pytest.mark.parametrize("size", [1, 2])
def test_equal_lengths_take_the_sum_of_their_steps(size: int) -> None:
    config = of_length(SMALL, size, 3_000)
    taken_s, num_tokens, _ = run_virtual(generate(config, num_prompts=8))
    roofline = SMALL.roofline(size)
    steps_s = sum(step_s(roofline, 64, 64 * (PROMPT_TOKENS + token)) for token in range(3_000))
    prefill_s = step_s(roofline, 0, 0, 8 * PROMPT_TOKENS)
    assert num_tokens == 64 * 3_000
    assert taken_s == pytest.approx(steps_s + prefill_s, rel=0.01)


def test_more_room_is_never_slower_and_preempts_no_more() -> None:
    found = []
    for share in (0.05, 0.1, 0.2, 0.4, 1.0):
        config = SMALL.engine(1)
        room = int(config.kv_capacity_tokens * share)
        changes = {"kv_capacity_tokens": room, "lengths": PAPER}
        found.append(run_virtual(generate(config.model_copy(update=changes), num_prompts=24)))
    seconds = [taken_s for taken_s, _, _ in found]
    assert seconds == sorted(seconds, reverse=True)
    assert found[0][2] > found[-1][2] == 0
    assert len({num_tokens for _, num_tokens, _ in found}) == 1, "preemption loses no token"


def test_a_longer_bound_is_never_faster() -> None:
    config = SMALL.engine(1).model_copy(update={"lengths": PAPER})
    seconds = [
        run_virtual(generate(config, num_prompts=16, longest=longest))[0]
        for longest in (500, 1_000, 2_000, 8_000, 32_000)
    ]
    assert seconds == sorted(seconds)


def test_siblings_prefill_their_prompt_once() -> None:
    shared = of_length(SMALL, 1, 1)
    alone = shared.model_copy(update={"shares_prompts": False})
    prompts = {"num_prompts": 64, "responses_per_prompt": 16}
    once_s, each_s = (run_virtual(generate(config, **prompts))[0] for config in (shared, alone))
    assert each_s > 4 * once_s


def test_short_micro_batches_on_many_devices_wait_for_the_host() -> None:
    short = replace(SMALL, training=ROLLPACKER["qwen2.5-7b"])
    assert SMALL.train_s_per_response() == 0 < short.train_s_per_response()
    waits_s = 60 * short.device.eager_s + 2 * short.device.collective_s
    assert short.train_s_per_response() == pytest.approx(6 * 28 * 2 * waits_s)
    assert short.train_s_per_response() > 1_000 * short.train_s_per_token()
    spread = replace(short, training=replace(short.training, context=2))
    assert spread.train_s_per_response() == 2 * short.train_s_per_response()
    packed = replace(SMALL, training=TrainingCost(micro_batch_tokens=500))
    assert packed.train_s_per_token() > SMALL.train_s_per_token()


def test_training_takes_its_arithmetic_in_long_micro_batches() -> None:
    machine = replace(SMALL, training=TrainingCost(micro_batch_tokens=10**9), context_tokens=0)
    flops = 6 * 2 * machine.model.matrix_parameters
    assert machine.train_s_per_token() == pytest.approx(flops / (989e12 * 0.34), rel=1e-4)


def test_another_size_costs_only_when_it_is_another() -> None:
    assert SMALL.relayout_s(2, 2) == 0
    assert SMALL.relayout_s(1, 2) > SMALL.relayout_s(1, 4) > 0


def test_larger_models_take_longer_to_publish() -> None:
    larger = replace(SMALL, model=MODELS["qwen2.5-32b"])
    assert larger.publish_s(2) > SMALL.publish_s(2) > 1
    assert larger.update_s() > SMALL.update_s() > 0
    assert larger.free_s(2) > SMALL.free_s(2) > 0.5


def test_a_device_that_goes_over_copies_the_states_of_both_sides() -> None:
    """Engine weights leave at 2.8 GB/s, the learner's come at 5.7; a reference's do both."""
    alone = replace(SMALL, training=TrainingCost(tensor=2, num_logprob_models=1))
    weights = SMALL.model.weight_bytes
    assert alone.free_s(1) == pytest.approx(0.5 + weights / 2.8e9 + weights / 2 / 5.7e9)
    assert alone.free_s(2) == pytest.approx(0.5 + weights / 2 / 2.8e9 + weights / 2 / 5.7e9)
    beside = replace(alone, training=TrainingCost(tensor=2, num_logprob_models=2))
    copied_s = weights / 2 / 2.8e9 + weights / 2 / 5.7e9
    assert beside.free_s(1) - alone.free_s(1) == pytest.approx(copied_s)
    assert alone.reload_s() == pytest.approx(4 * SMALL.model.parameters / 2 / 5.7e9)


def test_a_publication_replaces_the_weights_that_an_engine_wakes_with() -> None:
    weights = SMALL.model.weight_bytes
    learner_s, wakes_s, refit_s = weights / 2.8e9, weights / 2 / 5.7e9, weights / 3.9e9
    assert SMALL.publish_s(2) == pytest.approx(1.0 + learner_s + wakes_s + refit_s)


def test_the_batch_moves_padded_to_all_hosts_at_the_same_time() -> None:
    padded = replace(SMALL, batch_positions=1024 * 10_240)
    moved_s = 4 * 64 * 1024 * 10_240 / 2 / 0.25e9
    assert padded.update_s() - SMALL.update_s() == pytest.approx(moved_s)


def test_sizes_are_those_in_which_the_weights_fit() -> None:
    larger = replace(SMALL, model=MODELS["qwen2.5-32b"])
    assert SMALL.sizes(16, 8) == (1, 2, 4)  # 28 heads
    assert larger.sizes(16, 8) == (2, 4, 8)


def test_the_profile_predicts_what_the_engine_takes() -> None:
    profile = SMALL.profile((1, 2))
    assert ThroughputProfile.from_json(profile.to_json()) == profile
    demand = Demand(num_responses=64, prompt_tokens=PROMPT_TOKENS, response_tokens=400)
    config = of_length(SMALL, 1, 400)
    taken_s = run_virtual(generate(config, num_prompts=64, responses_per_prompt=1))[0]
    assert profile.predicted_s(1, 1, demand) == pytest.approx(taken_s, rel=0.1)
