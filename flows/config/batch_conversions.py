"""Functions of `other_systems.txt` (`foreign_values`): numbers and names, lengths, batches, rounds,
devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args  # Any: a value of YAML, everywhere

from artifacts.reports.trackers import TrackerName
from flows.config.foreign_values import (
    INFERS,
    JUDGE,
    RESPONSE_LENGTHS,
    Contradiction,
    ForeignValues,
    Several,
    Unneeded,
    numbers,
    ranges,
)

HALF: Final = 0.5  # further prompts of dynamic sampling where no number is given
MOST_FURTHER: Final = 16.0  # of scheduling.dynamic_sampling
LONGEST_NAME: Final = 60  # characters of run_name
TOKENS_OF_WORKERS: Final = 32  # engine.report_tokens beside elastic workers, as the presets have it
OWN_LENGTHS = (
    "sequence_length",
    "actor_infer.strategy_args.strategy_config.max_model_len",
    "actor_rollout_ref.rollout.max_model_len",
)
FILTER = "algorithm.filter_groups."


# numbers and texts


def never(key: str, value: Any, given: ForeignValues) -> Any:
    raise Contradiction


def positive(key: str, value: Any, given: ForeignValues) -> Any:
    if value <= 0:
        raise Contradiction
    return value


def or_never(key: str, value: Any, given: ForeignValues) -> Any:
    return max(0, value)


def or_preset(key: str, value: Any, given: ForeignValues) -> Any:
    if value is None or value <= 0:
        raise Unneeded
    return value


def negated(key: str, value: Any, given: ForeignValues) -> Any:
    return not value


def share_of_steps(key: str, value: Any, given: ForeignValues) -> Any:
    if value <= 0:
        raise Unneeded("no warm-up by share")
    return round(value * given.num_steps)


def run_name(key: str, value: Any, given: ForeignValues) -> Any:
    return re.sub(r"[^\w.-]|^[^a-zA-Z0-9]+", "-", str(value)).strip("-")[:LONGEST_NAME]


def trackers(key: str, value: Any, given: ForeignValues) -> Any:
    names = value if isinstance(value, list) else [value]
    if not (found := [name for name in names if name in get_args(TrackerName)]):
        raise Unneeded("terminal and MLflow are always told")
    return found


def decay(key: str, value: Any, given: ForeignValues) -> Any:
    if str(value).startswith("constant"):
        return 0
    if value != "linear":
        raise Contradiction
    floor = "learner.optimizer.floor_fraction"
    return Several({"learner.optimizer.decay_steps": given.num_steps, floor: 0.0})


# lengths and batches


def group_size(key: str, value: Any, given: ForeignValues) -> Any:
    if key.startswith("validation."):
        return Several({"evaluation.responses_per_prompt": value})
    return value


def context(key: str, value: Any, given: ForeignValues) -> Any:
    if given.of(*OWN_LENGTHS):
        raise Unneeded("the engine's own length is given")
    return int(value) + int(given.of(*RESPONSE_LENGTHS, default=0))


def fewest_requests(key: str, value: Any, given: ForeignValues) -> Any:
    inner = "actor_infer.strategy_args.strategy_config.max_num_seqs"
    return min(
        value, given.of("max_running_requests", default=value), given.of(inner, default=value)
    )


def mini_batches(key: str, value: Any, given: ForeignValues) -> Any:
    return given.mini_batches


# rounds


def roll_schedule(key: str, value: Any, given: ForeignValues) -> Any:
    groups, wanted = given.of("rollout_batch_size"), given.of("num_return_sequences_in_group")
    prompts, ratio = given.of("max_prompts_ratio", default=1), given.of("async_generation_ratio")
    responses = given.of("max_num_return_sequences", default=wanted) / wanted
    if given.of("is_use_additional_prompts"):
        prompts = 1 + given.of("max_additional_running_prompts", default=16) / groups
    if ratio:
        if key != "async_generation_ratio" and max(prompts, responses) > 1:
            raise Contradiction("asynchronous steps wait for what is slow, and launch none in vain")
        return Several({"scheduling.kind": "asynchronous", "scheduling.async_ratio": ratio})
    return tail_batching(prompts, max(1.0, responses))


def tail_batching(prompts: float, responses: float = 1.0) -> Several:
    """Rounds that launch these multiples of prompts and responses; plain ones for 1."""
    if max(prompts, responses) <= 1:
        return Several({"scheduling.kind": "sync"})
    return Several(
        {
            "scheduling.kind": "tail_batching",
            "scheduling.prompt_overprovision": round(float(prompts), 4),
            "scheduling.response_overprovision": round(float(responses), 4),
        }
    )


def verl_schedule(key: str, value: Any, given: ForeignValues) -> Any:
    wanted = given.of("data.train_batch_size")
    launched = given.of("data.gen_batch_size", default=wanted)
    if not given.of(f"{FILTER}enable"):
        return tail_batching(launched / wanted)
    batches = given.of(f"{FILTER}max_num_gen_batches", default=0)  # 0: without a bound
    further = batches * launched / wanted - 1 if batches else MOST_FURTHER
    bounded = round(min(MOST_FURTHER, max(0.0, further)), 4)
    return Several({"scheduling.kind": "sync", "scheduling.dynamic_sampling": bounded})


def query_filter(key: str, value: Any, given: ForeignValues) -> Any:
    if not key.endswith("type") or value == "no_filter":
        raise Unneeded("bounds of the filter")
    return HALF


def milestone(key: str, value: Any, given: ForeignValues) -> Any:
    if value <= 0 or not given.of("autoscaling"):
        raise Unneeded("no device is freed")
    last = "stream_trainer.last_milestone"
    return Several({"stream_trainer.first_milestone": value, last: max(HALF, value)})


def rollout_name(key: str, value: Any, given: ForeignValues) -> Any:
    if value == "vllm":
        raise Unneeded("as here")
    if value != "sglang-disaggregated":
        raise Contradiction
    switched_on = {"elastic.enabled": True, "seeding.enabled": True}
    return Several({**switched_on, "engine.report_tokens": TOKENS_OF_WORKERS})


def elastic_workers(key: str, value: Any, given: ForeignValues) -> Any:
    return Several({"elastic.enabled": True, "elastic.max_workers": value})


def sender_address(key: str, value: Any, given: ForeignValues) -> Any:
    if value == "0.0.0.0/0":
        raise Unneeded("any of this machine's addresses")
    address = str(value).removesuffix("/32")
    if "/" in address or "," in address:
        raise Contradiction("the one address that workers reach: set elastic.weights.host")
    return address


# devices


def device_roles(key: str, value: Any, given: ForeignValues) -> Any:
    roles = {"rollout": numbers(given.of(INFERS, default=value)), "learner": numbers(value)}
    workers = given.matching(r"rewards\.([^.]+)\.worker_cls")
    for name, worker in workers.items():
        if (mapping := given.of(f"rewards.{name}.device_mapping")) and str(worker).endswith(JUDGE):
            roles["judge"] = numbers(mapping)
    return placed(roles)


def placed(roles: Mapping[str, Sequence[int]]) -> Several:
    text = ", ".join(f"{role}: {ranges(devices)}" for role, devices in roles.items())
    num_devices = 1 + max(max(devices) for devices in roles.values())
    kind = {"cluster.device_kind": "cuda", "cluster.num_devices": num_devices}
    return Several({**kind, "cluster.roles": text})


def verl_devices(key: str, value: Any, given: ForeignValues) -> Any:
    every = range(given.learner_devices)
    roles = placed({"rollout": every, "learner": every})
    return Several({**roles, "cluster.devices_per_host": value})


def parameters(key: str, value: Any, given: ForeignValues) -> Any:
    in_mid_round = (
        given.of("autoscaling")
        or given.of("actor_rollout_ref.rollout.name") == "sglang-disaggregated"
    )
    is_spread = given.learner_devices > 1 and not in_mid_round and not given.has_critic
    return "sharded" if is_spread else "replicated"
