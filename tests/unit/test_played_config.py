"""A configuration that is played has its devices where the real run has them."""

from __future__ import annotations

import pytest
from simulated_run_factories import PlainWorkload

from flows.config.run_config import RunConfig
from flows.played_config import played_run
from research.ablations.policies import ComparedConfig
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.balancing import BalancingConfig
from tasks.simulation.plain import PlainMachine
from tasks.simulation.simulated_run import SimulatedRun
from tasks.simulation.steps import play


def played(roles: str, num_devices: int = 3) -> SimulatedRun:
    cluster = {"num_devices": num_devices, "roles": roles}
    config = RunConfig.model_validate({"preset": "tiny", "cluster": cluster})
    return played_run(config, PlainMachine(num_devices=num_devices), PlainWorkload(), num_steps=2)


def test_devices_that_do_both_train_when_their_round_is_over() -> None:
    run = played("rollout: 0-2, learner: 0-2")
    assert run.placement.is_colocated
    assert list(run.placement.learner) == list(run.placement.rollout) == [0, 1, 2]
    assert run.policy.kind == "tail_batching"


def test_devices_that_train_alone_are_no_engines() -> None:
    run = played("rollout: 0-1, learner: 2")
    assert not run.placement.is_colocated
    assert (list(run.placement.rollout), list(run.placement.learner)) == ([0, 1], [2])


def test_running_responses_are_shared_out_as_the_configuration_says() -> None:
    """Of a policy that moves them within the run's own engines."""
    lengths = LengthModel(median_tokens=300, sigma=1.5)
    machine, work = PlainMachine(num_devices=2), PlainWorkload(lengths=lengths)

    def num_migrated(is_enabled: bool) -> int:
        policy = {"kind": "longest_first", "under_way": 1.0}
        config = ComparedConfig.model_validate(
            {
                "preset": "tiny-sync",
                "scheduling": policy,
                "balancing": BalancingConfig(
                    enabled=is_enabled, interval_s=1.0, threshold=0.0, keep_running=0
                ),
            }
        )
        return play(played_run(config, machine, work, num_steps=1)).steps[0].num_migrated

    assert num_migrated(True) > 0
    assert num_migrated(False) == 0


def test_devices_of_which_some_do_both_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the same devices or none in common, got 'rollout: 0-2"):
        played("rollout: 0-2, learner: 2")
