"""Rules for seeding: runs whose own devices leave the rest of a round to elastic workers."""

from __future__ import annotations

from flows.config.parts import Parts
from tasks.cluster.devices import device_map


def check_seeding(config: Parts) -> None:
    """Raise ValueError if seeding is enabled, but the run's devices could not change from
    generating to training in mid-round."""
    if not config.seeding.enabled:
        return
    if not config.elastic.enabled:
        raise ValueError(
            "seeding.enabled needs elastic.enabled: only elastic workers go on with what the run's"
            " own devices have begun; enable elastic workers, or disable seeding"
        )
    _check_policy(config)
    _check_training(config)
    placed = device_map(config.cluster)
    if not set(placed["rollout"]) & set(placed["learner"]):
        raise ValueError(
            "seeding.enabled needs a device that generates and trains, got roles"
            f" {config.cluster.roles!r}; give rollout and learner one in common, or disable seeding"
        )


def _check_policy(config: Parts) -> None:
    """Rounds must accept groups while they run, and carry no responses into the next round."""
    algebra = config.scheduling.algebra(config.batch)
    if algebra.is_off_policy:
        raise ValueError(
            "seeding.enabled needs rounds that carry nothing into the next one, scheduling.kind"
            f" {config.scheduling.kind!r} does; disable seeding"
        )
    if algebra.streaming_needs:
        raise ValueError(
            f"seeding.enabled needs {algebra.streaming_needs}; change it, or disable seeding"
        )


def _check_training(config: Parts) -> None:
    """A learner rank must be able to make a group's gradients without other groups and ranks."""
    learner = config.learner
    if learner.advantage.spans_step:
        raise ValueError(
            "seeding.enabled needs advantages that a group has by itself, got"
            f" learner.advantage.kind {learner.advantage.kind!r}, which waits for all rewards of"
            " the step; take grpo or dr_grpo, or disable seeding"
        )
    if learner.num_updates != 1:
        raise ValueError(
            "seeding.enabled needs steps of one update, got learner.mini_batches"
            f" {learner.mini_batches} and learner.passes {learner.passes}: gradients that are made"
            " in mid-round are of the policy before the first update; set both to 1, or disable"
            " seeding"
        )
    if learner.parameters == "sharded":
        raise ValueError(
            "seeding.enabled needs learner.parameters=replicated, got 'sharded': a rank computes"
            " with the shards of all others, whose devices may still generate; set that, or"
            " disable seeding"
        )
