"""Runs of simulated steps, whatever the policy, the machine and the load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_run_factories import MACHINE, WORK, make_run

from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.simulated_run import SimulatedRun
from tasks.simulation.steps import play

policies = st.one_of(
    st.just(SyncConfig()),
    st.just(SyncConfig(dynamic_sampling=1.0)),
    st.builds(
        TailBatchingConfig,
        prompt_overprovision=st.sampled_from([1.25, 2.0]),
        response_overprovision=st.sampled_from([1.0, 1.5]),
    ),
)


@st.composite
def runs(draw: st.DrawFn) -> SimulatedRun:
    lengths = LengthModel(
        median_tokens=draw(st.integers(5, 300)), sigma=draw(st.floats(0, 1.5)), seed=0
    )
    policy: Policy = draw(policies)
    return make_run(
        policy=policy,
        num_steps=draw(st.integers(1, 4)),
        batch=BatchConfig(
            prompts_per_step=draw(st.integers(1, 8)),
            responses_per_prompt=draw(st.integers(2, 4)),
        ),
        machine=replace(MACHINE, num_devices=draw(st.sampled_from([2, 4]))),
        work=replace(WORK, lengths=lengths),
        stream_trainer=StreamTrainerConfig(enabled=draw(st.booleans())),
        tensor_parallel_size=draw(st.sampled_from([1, 2])),
        seed=draw(st.integers(0, 99)),
    )


@given(runs())
@settings(max_examples=10, deadline=None)
def test_steps_are_exact_and_their_seconds_and_tokens_add_up(run: SimulatedRun) -> None:
    played = play(run)
    trained = [prompt for step in played.steps for prompt in step.trained]
    assert len(trained) == len(set(trained))
    per_prompt = run.batch.responses_per_prompt
    for step in played.steps:
        assert step.num_trained_responses == len(step.trained) * per_prompt
        assert step.is_drain or len(step.trained) == run.batch.prompts_per_step
        assert sum(step.parts_s.values()) == pytest.approx(step.step_s)
        lost = step.num_generated - sum(step.tokens.values())
        assert 0 <= lost <= step.num_migrated + 2 * 2 * 8 * 2 * per_prompt
        assert step.longest_tokens <= run.work.longest_tokens
