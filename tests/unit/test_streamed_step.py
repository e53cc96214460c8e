"""A whole step on a virtual clock: engines, policy, migration and learners together, and what the
stream trainer saves."""

from __future__ import annotations

import pytest

from benchmarks.stream_trainer_simulated import Machine, play_step, token_cost_s
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.stream_training import StreamTrainerConfig

ON = StreamTrainerConfig(enabled=True)
ENGINE = SimulatedEngineConfig(
    max_batch=64, kv_capacity_tokens=40_000, lengths=LengthModel(median_tokens=120, sigma=1.2)
)
MACHINE = Machine(
    num_devices=4, num_prompts=24, responses_per_prompt=4, engine=ENGINE, longest_tokens=2000
)


@pytest.mark.parametrize("train_share", [0.1, 0.25, 0.5])
def test_training_on_freed_devices_shortens_the_step(train_share: float) -> None:
    cost_s = token_cost_s(MACHINE, train_share)
    without, streamed = (
        run_virtual(play_step(MACHINE, config, cost_s, seed=0))
        for config in (StreamTrainerConfig(), ON)
    )
    assert (
        without.trained
        == streamed.trained
        == tuple(sorted(ref.prompt_id for ref in MACHINE.plan().prompts))
    )
    assert (without.num_streamed, without.num_migrated) == (0, 0)
    assert streamed.num_streamed > 0
    assert streamed.num_migrated > 0
    assert streamed.step_s < without.step_s


def test_training_fills_the_tail_where_there_is_enough_of_it() -> None:
    cost_s = token_cost_s(MACHINE, 0.5)
    without, streamed = (
        run_virtual(play_step(MACHINE, config, cost_s, seed=0))
        for config in (StreamTrainerConfig(), ON)
    )
    assert streamed.tail < 0.8 * without.tail
