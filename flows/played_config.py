"""Converts a configuration to a simulated run, which is played in virtual time: its policy, batch
and placement of rollout and learner, with the costs and the workload that the caller gives.

Leaves out the configuration's planner of engine sizes, its judges and its elastic workers.
"""

from __future__ import annotations

from flows.config.run_config import RunConfig
from tasks.cluster.devices import ClusterConfig, device_map
from tasks.simulation.protocols import MachineCosts, RunWork
from tasks.simulation.simulated_run import SimulatedRun


def played_run(
    config: RunConfig,
    machine: MachineCosts,
    work: RunWork,
    num_steps: int,
    devices_per_rank: int = 1,
    seed: int = 0,
) -> SimulatedRun:
    """Make the simulated run. Raises ValueError if rollout and learner share only some devices."""
    return SimulatedRun(
        machine=machine,
        work=work,
        policy=config.scheduling,
        batch=config.batch,
        num_steps=num_steps,
        tensor_parallel_size=config.engine.tensor_parallel_size,
        knows_profile=False,
        stream_trainer=config.stream_trainer,
        balancing=config.balancing,
        learner_devices=_learner_devices(config.cluster),
        devices_per_rank=devices_per_rank,
        seed=seed,
    )


def _learner_devices(cluster: ClusterConfig) -> int:
    """Number of devices that only train; 0 if all devices generate and train."""
    placed = device_map(cluster)
    rollout, learner = set(placed["rollout"]), set(placed["learner"])
    if rollout == learner:
        return 0
    if rollout & learner:
        raise ValueError(
            "to be simulated, rollout and learner must have the same devices or none in common,"
            f" got {cluster.roles!r}; change cluster.roles"
        )
    return len(learner)
