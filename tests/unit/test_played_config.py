"""A configuration that is played has its devices where the real run has them."""

from __future__ import annotations

import pytest

from flows.config.run_config import RunConfig
from flows.played_config import played_run
from tasks.simulation.plain import PlainMachine, PlainWorkload
from tasks.simulation.simulated_run import SimulatedRun


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


def test_devices_of_which_some_do_both_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the same devices or none in common, got 'rollout: 0-2"):
        played("rollout: 0-2, learner: 2")
