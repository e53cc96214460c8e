"""Rules between the learner and other parts of a configuration, as in `consistency`."""

from __future__ import annotations

from flows.config.parts import Parts
from flows.config.presets import preset_values
from tasks.cluster.devices import device_map

SWEPT_SCHEDULES = ("sync", "tail_batching")
SWEPT_ENGINES = ("vllm", "simulated")


def check_warm_ups(config: Parts) -> None:
    """A warm-up must end within the run. A preset's own may be longer: a trial of two steps trains
    as the first two steps of the whole run do."""
    if not config.trains:
        return
    learner, last = config.learner, config.num_steps
    warm_ups = {"learner.optimizer.warmup_steps": learner.optimizer.warmup_steps}
    if learner.has_critic:
        warm_ups["learner.critic.optimizer.warmup_steps"] = learner.critic.optimizer.warmup_steps
        if learner.critic.warmup_steps >= last:
            raise ValueError(
                f"learner.critic.warmup_steps must be less than num_steps ({last}), got"
                f" {learner.critic.warmup_steps}: the policy would never learn; --set"
                f" learner.critic.warmup_steps={last - 1}"
            )
    kept = preset_values(config.preset)["learner"]["optimizer"].get("warmup_steps")
    for name, steps in warm_ups.items():
        if steps > last and steps != kept:
            raise ValueError(
                f"{name} must be at most num_steps ({last}), got {steps}: the learning rate would"
                f" never be reached; --set {name}={last}, or raise num_steps"
            )


def check_updates(config: Parts) -> None:
    """Groups are not cut into mini-batches."""
    fewest = min(shape.accept_prompts for shape in config.scheduling.algebra(config.batch).rounds)
    if 1 < config.learner.mini_batches > fewest:
        raise ValueError(
            f"learner.mini_batches must be at most the groups that a step trains ({fewest}), got"
            f" {config.learner.mini_batches}: groups are not cut; --set"
            f" learner.mini_batches={fewest}, or raise batch.prompts_per_step"
        )


def check_shards(config: Parts) -> None:
    """Shards need two ranks, all of which train together."""
    if config.learner.parameters != "sharded" or not config.trains:
        return
    num_ranks = len(device_map(config.cluster)["learner"])
    if num_ranks < 2:
        raise ValueError(
            "learner.parameters=sharded needs two devices of the role learner or more, got"
            f" {num_ranks} with roles {config.cluster.roles!r}; give it more, or leave"
            " learner.parameters=replicated"
        )
    if config.stream_trainer.enabled:
        raise ValueError(
            "learner.parameters=sharded cannot train in mid-round: a rank computes with the shards"
            " of all others, whose devices still generate; disable stream_trainer, or leave"
            " learner.parameters=replicated"
        )


def check_loss(config: Parts) -> None:
    """Tokens of older weights need a loss that corrects for them."""
    is_off_policy = config.scheduling.algebra(config.batch).is_off_policy
    if is_off_policy and not config.learner.loss.corrects_staleness:
        raise ValueError(
            "learner.loss must correct for older weights beside scheduling.kind"
            f" {config.scheduling.kind!r}, got {config.learner.loss.kind!r}, which takes their"
            " tokens for the learner's own; choose another loss"
        )


def check_sweep(config: Parts) -> None:
    """Several adapters in one run are trained in synchronous rounds on replicated parameters."""
    learner, lora = config.learner, config.learner.lora
    if not lora.sweep:
        return
    needs: dict[str, tuple[bool, object]] = {
        "trains=true": (config.trains, config.trains),
        "scheduling.kind sync or tail_batching": (
            config.scheduling.kind in SWEPT_SCHEDULES,
            config.scheduling.kind,
        ),
        "engine.kind vllm or simulated": (config.engine.kind in SWEPT_ENGINES, config.engine.kind),
        "elastic.enabled=false": (not config.elastic.enabled, config.elastic.enabled),
        "no environments": (not config.environments, ", ".join(config.environments)),
        "learner.parameters=replicated": (
            learner.parameters == "replicated",
            learner.parameters,
        ),
        "learner.lora.publish=adapter": (lora.publish == "adapter", lora.publish),
        "learner.lora.initial empty": (not lora.initial, lora.initial),
        "learner.mini_batches and learner.passes 1": (
            learner.num_updates == 1,
            f"{learner.mini_batches} and {learner.passes}",
        ),
        "an advantage that a group has by itself": (
            not (learner.has_critic or learner.advantage.spans_step),
            learner.advantage.kind,
        ),
    }
    for needed, (is_met, value) in needs.items():
        if not is_met:
            raise ValueError(
                f"learner.lora.sweep needs {needed}, got {value}; change it, or train the adapters"
                " in runs of their own"
            )
    _check_shares(config)


def _check_shares(config: Parts) -> None:
    """Adapters that all answer every prompt have equal shares of what a round over new prompts
    launches and trains, and of its reserve."""
    times, asked = config.learner.lora.answering.times, config.batch.prompts_per_step
    if not (uneven := _uneven(config, asked)):
        return
    fitting = (
        number for number in range(asked, asked + 100 * times) if not _uneven(config, number)
    )
    even = next(fitting, None)
    cure = f"--set batch.prompts_per_step={even}" if even else "over-provision by another factor"
    told = ", ".join(f"{what} {count}" for what, count in uneven.items())
    raise ValueError(
        f"batch.prompts_per_step must give each adapter of learner.lora.sweep ({times}), all of"
        f" which answer every prompt, as many prompts of a round, got {asked}, by which a round"
        f" {told}; {cure}"
    )


def _uneven(config: Parts, prompts_per_step: int) -> dict[str, int]:
    """The numbers of prompts of a round that are no multiple of the adapters."""
    batch = config.batch.model_copy(update={"prompts_per_step": prompts_per_step})
    algebra = config.scheduling.algebra(batch)
    counts = {
        "trains": algebra.ordinary.accept_prompts,
        "launches": algebra.ordinary.launch_prompts,
        "has in reserve": algebra.reserve_prompts,
    }
    times = config.learner.lora.answering.times
    return {what: count for what, count in counts.items() if count % times}
