"""Rules between several parts of a configuration. Rules within one part are checked by that part.

Every rule is a function that raises ValueError with the rule, the value and the cure.
"""

from __future__ import annotations

from collections.abc import Callable

from artifacts.datasets.registry import CurriculumConfig, TaskConfig
from flows.config.elastic_rules import check_elastic_workers
from flows.config.episode_rules import (
    check_environment_workers,
    check_episode_bounds,
    check_episode_rewards,
    check_player,
)
from flows.config.learner_rules import (
    check_loss,
    check_shards,
    check_sweep,
    check_updates,
    check_warm_ups,
)
from flows.config.parts import Parts
from tasks.cluster.devices import device_map, engine_members
from tasks.engines.transports.base import TransportKind
from tasks.engines.transports.registry import placed_transport
from tasks.learner.overlong import SoftPunishment
from tasks.rewards.judges.reward import judge_engine_of
from tasks.rewards.programs.code_tests import CodeTestsConfig

ROOM = 256  # tokens that an advised context leaves for a prompt


def broken_rules(config: Parts) -> list[str]:
    """Check all rules; returns a sentence for each that is broken."""
    found: dict[str, None] = {}
    for rule in RULES:
        try:
            rule(config)
        except ValueError as error:
            found[str(error)] = None
    return list(found)


def _check_members(config: Parts) -> None:
    engine_members(config.cluster, config.engine.tensor_parallel_size)


def _check_training(config: Parts) -> None:
    """A run that trains needs a learner, one that does not needs rounds of one weight version."""
    has_learner = bool(device_map(config.cluster)["learner"])
    if config.trains and not has_learner:
        raise ValueError(
            "cluster.roles must place rollout and learner, learner missing in"
            f" {config.cluster.roles!r}; add 'learner: 0', or generate and score alone: rollflow"
            " rollout"
        )
    if not config.trains and config.scheduling.algebra(config.batch).is_off_policy:
        raise ValueError(
            "trains=false needs rounds that carry nothing into the next one, scheduling.kind"
            f" {config.scheduling.kind!r} does; --set scheduling.kind=sync"
        )
    if config.trains and config.replays:
        raise ValueError(
            f"replays needs trains=false, got {config.replays!r} beside training; use rollflow"
            " rollout --from RUN"
        )


def _check_held_out(config: Parts) -> None:
    if not config.trains:  # it evaluates nothing
        return
    if field := _nothing_held_out(config.task):
        raise ValueError(
            f"task.{field} must be > 0, got 0: a run asks {config.evaluation.num_prompts} held-out"
            " prompts before it and after it (evaluation.num_prompts); raise it"
        )


def _nothing_held_out(task: TaskConfig) -> str:
    """The field because of which a task holds out no question; empty if it holds out some."""
    if isinstance(task, CurriculumConfig):
        below = _nothing_held_out(task.task)
        return below and f"task.{below}"
    apart = getattr(task, "heldout_path", "") or getattr(task, "heldout_split", "")
    if getattr(task, "heldout_prompts", 1) == 0:
        return "heldout_prompts"
    return "heldout_fraction" if getattr(task, "heldout_fraction", 1) == 0 and not apart else ""


def _check_lengths(config: Parts) -> None:
    longest = config.sampling.max_response_tokens
    if longest >= config.engine.max_model_len:
        raise ValueError(
            "sampling.max_response_tokens must leave room for a prompt in engine.max_model_len"
            f" ({config.engine.max_model_len}), got {longest}; lower it, or --set"
            f" engine.max_model_len={longest + ROOM}"
        )
    overlong = config.learner.overlong
    if isinstance(overlong, SoftPunishment) and overlong.max_tokens > longest:
        raise ValueError(
            "learner.overlong.max_tokens must be at most sampling.max_response_tokens"
            f" ({longest}), got {overlong.max_tokens}: no response would ever lose the whole"
            f" penalty; --set learner.overlong.max_tokens={longest}"
        )


def _check_temperature(config: Parts) -> None:
    if config.sampling.temperature == 0:
        raise ValueError(
            "sampling.temperature must be above 0, got 0: the responses of a prompt would all be"
            " the same, and the learner divides its logits by it; --set sampling.temperature=1"
        )


def _check_distribution(config: Parts) -> None:
    if (top_p := config.sampling.top_p) != 1:
        raise ValueError(
            f"sampling.top_p must be 1, got {top_p:g}: the learner scores the whole"
            " distribution, so that its ratios to tokens of a cut one would be wrong, by up to"
            " 1 / top_p each; --set sampling.top_p=1, and sharpen with sampling.temperature"
        )


def _check_sleep(config: Parts) -> None:
    placed, kind = device_map(config.cluster), config.cluster.device_kind
    is_shared = set(placed["rollout"]) & set(placed["learner"])
    if config.engine.sleeps and not (kind == "cuda" and is_shared):
        raise ValueError(
            "engine.sleep_mode needs GPUs that rollout and learner share, "
            f"got device_kind {kind!r} with roles {config.cluster.roles!r}; --set"
            " engine.sleep_mode=false"
        )


def _check_stream_trainer(config: Parts) -> None:
    """The stream trainer needs a learner device that is free before the round ends."""
    if not config.stream_trainer.enabled:
        return
    _check_mid_round(config, "stream_trainer", "stream_trainer")
    placed = device_map(config.cluster)
    if len(placed["rollout"]) < 2 and set(placed["learner"]) <= set(placed["rollout"]):
        raise ValueError(
            "stream_trainer needs a learner device that a round can do without, got roles"
            f" {config.cluster.roles!r}; give rollout a second device, or learner one of its own,"
            " or disable stream_trainer"
        )


def _check_seeding(config: Parts) -> None:
    """Devices change from generating to training in mid-round, and carry nothing into the next."""
    if not config.seeding.enabled:
        return
    if not config.elastic.enabled:
        raise ValueError(
            "seeding.enabled needs elastic.enabled: only elastic workers go on with what the run's"
            " own devices have begun; enable elastic workers, or disable seeding"
        )
    if config.scheduling.algebra(config.batch).is_off_policy:
        raise ValueError(
            "seeding.enabled needs rounds that carry nothing into the next one, scheduling.kind"
            f" {config.scheduling.kind!r} does; disable seeding"
        )
    _check_mid_round(config, "seeding.enabled", "seeding")
    if config.learner.parameters == "sharded":
        raise ValueError(
            "seeding.enabled needs learner.parameters=replicated, got 'sharded': a rank computes"
            " with the shards of all others, whose devices may still generate; set that, or"
            " disable seeding"
        )
    placed = device_map(config.cluster)
    if not set(placed["rollout"]) & set(placed["learner"]):
        raise ValueError(
            "seeding.enabled needs a device that generates and trains, got roles"
            f" {config.cluster.roles!r}; give rollout and learner one in common, or disable seeding"
        )


def _check_mid_round(config: Parts, field: str, part: str) -> None:
    """A rank must make a group's gradients without other groups. `field` enables `part`."""
    learner = config.learner
    needed = config.scheduling.algebra(config.batch).streaming_needs
    if needed:
        raise ValueError(f"{field} needs {needed}; change it, or disable {part}")
    if learner.advantage.spans_step:
        raise ValueError(
            f"{field} needs advantages that a group has by itself, got learner.advantage.kind"
            f" {learner.advantage.kind!r}, which waits for all rewards of the step; take grpo or"
            f" dr_grpo, or disable {part}"
        )
    if learner.num_updates != 1:
        raise ValueError(
            f"{field} needs steps of one update, got learner.mini_batches {learner.mini_batches}"
            f" and learner.passes {learner.passes}: gradients that are made in mid-round are of the"
            f" policy before the first update; set both to 1, or disable {part}"
        )


def transport_for(config: Parts) -> TransportKind:
    """How weights get to the engines: as set, else the fastest that the roles allow; by file where
    elastic workers may come, which need one of every version."""
    placed, chosen = placed_transport(config.cluster), config.learner.transport
    if chosen == "auto":
        return "file" if not config.engine.takes_offers or config.elastic.enabled else placed
    if chosen == "file":
        return chosen
    if not config.engine.takes_offers or config.elastic.enabled:
        raise ValueError(
            f"learner.transport={chosen} needs engine.kind=vllm and no elastic workers, which read"
            f" a file, got engine.kind {config.engine.kind!r}; leave learner.transport=auto"
        )
    if config.cluster.device_kind == "cuda" and chosen != placed:
        raise ValueError(
            f"learner.transport={chosen} does not fit cluster.roles {config.cluster.roles!r}: ipc"
            " needs engines on the learner's GPUs alone, broadcast none on the GPU of its first"
            " rank, and one machine; change the roles, or leave learner.transport=auto"
        )
    return chosen


def _check_planner(config: Parts) -> None:
    planner = config.planner
    if planner.enabled and planner.rule == "lengths" and not planner.profile:
        raise ValueError(
            "planner.rule 'lengths' needs a measured planner.profile, got none; make one with"
            " 'rollflow calibrate', or leave planner.rule=preemptions"
        )
    size, largest = config.engine.tensor_parallel_size, planner.max_tensor_parallel_size
    if planner.enabled and size > largest:
        raise ValueError(
            "planner.max_tensor_parallel_size must be at least the size that the run begins with,"
            f" engine.tensor_parallel_size ({size}), got {largest}; raise it"
        )


def _check_overlap(config: Parts) -> None:
    """If steps overlap, engines are never idle, and no device is freed for the stream trainer."""
    if not config.scheduling.algebra(config.batch).overlaps:
        return
    if config.planner.enabled:
        raise ValueError(
            "planner needs engines that are idle between rounds, scheduling.kind"
            f" {config.scheduling.kind!r} keeps them busy; disable planner, or have them rest with"
            " scheduling.at_update=pause"
        )
    if config.engine.sleeps:
        raise ValueError(
            "engine.sleep_mode needs engines that rest while the learner trains, scheduling.kind"
            f" {config.scheduling.kind!r} keeps them busy; leave it out, or have them rest with"
            " scheduling.at_update=pause"
        )
    limits = config.stream_trainer.changed_limits if config.stream_trainer.enabled else {}
    if limits:
        told = ", ".join(f"stream_trainer.{name} {value}" for name, value in limits.items())
        raise ValueError(
            "the stream trainer's limits must be the defaults beside scheduling.kind"
            f" {config.scheduling.kind!r}, got {told}: its steps train while engines generate, and"
            " none of these makes room; leave them out (stream_trainer.enabled trains groups as"
            " they are accepted)"
        )


def _check_timeouts(config: Parts) -> None:
    for domain, reward in config.rewards.items():
        timeout = reward.timeout if isinstance(reward, CodeTestsConfig) else None
        if timeout and timeout.floor_s > timeout.ceiling_s:
            raise ValueError(
                f"rewards.{domain}.timeout.floor_s must be at most half of deadlines.reward_s"
                f" ({timeout.ceiling_s:g}), got {timeout.floor_s:g}; lower it, or raise"
                " deadlines.reward_s"
            )


def _check_judge(config: Parts) -> None:
    judge, placed = judge_engine_of(config.rewards), device_map(config.cluster)
    roles = config.cluster.roles
    if judge is None:
        if "judge" in placed:
            raise ValueError(
                f"the role judge needs a reward of kind judge, got none with roles {roles!r};"
                " add one, or drop the role"
            )
        return
    if "judge" not in placed:
        raise ValueError(
            f"a reward of kind judge needs the role judge, got roles {roles!r}; add ', judge:"
            f" {placed['rollout'][-1]}'"
        )
    judge.check_device(config.cluster.device_kind)
    shares = config.engine.gpu_share + judge.gpu_memory_utilization
    is_shared = set(placed["judge"]) & set(placed["rollout"])
    if config.cluster.device_kind == "cuda" and shares > 1 and is_shared:
        raise ValueError(
            "engine and judge on one GPU must together have a gpu_memory_utilization of at"
            f" most 1, got {shares:g}; lower one, or give the judge a device of its own"
        )


RULES: tuple[Callable[[Parts], object], ...] = (
    _check_members,
    _check_training,
    _check_held_out,
    check_warm_ups,
    _check_lengths,
    _check_temperature,
    _check_distribution,
    _check_sleep,
    _check_stream_trainer,
    check_updates,
    check_shards,
    check_sweep,
    transport_for,
    _check_timeouts,
    _check_judge,
    check_environment_workers,
    _check_planner,
    check_loss,
    _check_overlap,
    check_player,
    check_episode_rewards,
    check_episode_bounds,
    check_elastic_workers,
    _check_seeding,
)
