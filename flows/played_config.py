"""A configuration as a run that can be played in virtual time: its policy and batch, and who works
where, on a machine and with a workload that are given.

Leaves out its planner of engine sizes, its judges and its elastic workers.
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
    """What `tasks.simulation.steps.play` plays. ValueError where rollout and learner share some of
    their devices only."""
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
    """That train alone; 0 where all generate and train."""
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
