"""Chooses a run's devices where its configuration leaves them to the machine
(cluster.device_kind=auto): the machine's GPUs, or CPU cores where it has none.

    a preset's roles on cores              on N GPUs
    one core in both roles           ─▶    the first GPU in both: workers that join take the others
    rollout and learner share        ─▶    all N in both
    rollout and learner apart        ─▶    N - N//2 generate, N//2 train; one GPU does both in turn
    judge                            ─▶    the last GPU

On cores learner and engines compute in bf16 where it is multiplied fast, in fp32 elsewhere.

Whatever the user has set stays. The choice is made while a configuration is validated, so that a
run's manifest holds the kind of device that was taken, and a resumed run keeps it. The workers of a
cluster that a run joins may be on other machines: there the kind must be named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from artifacts.urls import secret_in
from flows.config.overlay import overlay
from flows.config.parts import Parts
from flows.config.presets import Values, preset_values
from tasks.cluster import cores, gpus
from tasks.cluster.devices import num_environment_workers, parse_role_map
from tasks.engines.registry import ENGINES
from tasks.scheduling.policies.registry import POLICIES

AUTO = "auto"
# shares of a GPU's memory beside a learner of a small model; each of the three has at least 4 GB
# of a card with 16
ENGINE_SHARE, JUDGE_SHARE = 0.3, 0.25
# policies whose engines can rest while the learner trains
PAUSING = {
    policy.model_fields["kind"].default for policy in POLICIES if "at_update" in policy.model_fields
}
Json = Mapping[str, Any]  # Any: parsed JSON, not checked yet


def with_devices(values: Json, given: Json) -> Values:
    """Complete a configuration's values by the devices of this machine. values: of the preset, with
    those of the user (`given`) laid over. Raises ValueError for more devices than there are GPUs,
    and for a joined cluster."""
    if _part(values, "cluster").get("device_kind", AUTO) != AUTO or given.get("resume"):
        return dict(values)
    address = _part(values, "cluster").get("scheduler_address")
    if isinstance(address, str) and secret_in(address):
        return dict(values)  # refused by the field's own check
    if address:
        raise ValueError(
            "cluster.device_kind must be named beside cluster.scheduler_address, whose workers may"
            f" be on other machines, got auto beside {address!r}; set cluster.device_kind=cpu or"
            " cluster.device_kind=cuda"
        )
    found = gpus.found_gpus()
    if not found.names:
        return overlay(values, {"cluster": {"device_kind": "cpu"}})
    return _on_gpus(values, given, len(found.names))


def with_fast_products(values: Json, given: Json) -> Values:
    """Have learner and engines on cores that multiply bf16 slowly multiply in fp32, unless a dtype
    was given. values: as for `with_devices`, which has completed them."""
    on_cores = _part(values, "cluster").get("device_kind") == "cpu"
    if given.get("resume") or not on_cores or cores.multiply_bf16():
        return dict(values)
    fast: Values = {}
    if "compute" not in _part(given, "learner"):
        is_sharded = _part(values, "learner").get("parameters") == "sharded"
        fast["learner"] = {"compute": "fp32" if is_sharded else "mixed"}
    if _has(values, "dtype") and "dtype" not in _part(given, "engine"):
        fast["engine"] = {"dtype": "float32"}
    return overlay(values, fast)


def _on_gpus(values: Json, given: Json, num_gpus: int) -> Values:
    asked = _part(given, "cluster")
    num_devices = asked.get("num_devices", num_gpus)
    if isinstance(num_devices, int) and num_devices > num_gpus:
        raise ValueError(
            f"cluster.num_devices must be at most the GPUs of this machine ({num_gpus}), got"
            f" {num_devices}; lower it, or name cluster.device_kind"
        )
    roles = _part(values, "cluster").get("roles")
    if "roles" not in asked and isinstance(roles, str) and isinstance(num_devices, int):
        if "num_devices" not in asked and _num_devices(roles) == 1:
            num_devices = 1
        roles = spread(roles, num_devices)
    cluster = {"device_kind": "cuda", "num_devices": num_devices, "roles": roles}
    placed = overlay(values, {"cluster": cluster})
    if not isinstance(roles, str) or not isinstance(num_devices, int):
        return placed  # refused by the fields' own types
    return _with_room(_in_turn(placed, given, roles), given, roles)


def _num_devices(roles: str) -> int:
    return len({device for devices in parse_role_map(roles).values() for device in devices})


def spread(roles: str, num_devices: int) -> str:
    """A role map for so many devices in the spirit of another one: see the module."""
    placed = parse_role_map(roles)
    rollout, learner = ((0, num_devices), (0, num_devices))
    if not placed["learner"]:  # rounds without training
        learner = (0, 0)
    elif not set(placed["rollout"]) & set(placed["learner"]) and num_devices > 1:
        rollout = (0, num_devices - num_devices // 2)
        learner = (rollout[1], num_devices)
    told = f"rollout: {_span(*rollout)}"
    told += f", learner: {_span(*learner)}" if placed["learner"] else ""
    told += f", judge: {num_devices - 1}" if "judge" in placed else ""
    workers = num_environment_workers(roles)
    return f"{told}, environment: {workers}" if workers else told


def _span(first: int, end: int) -> str:
    return f"{first}-{end - 1}" if end - first > 1 else f"{first}"


def _in_turn(values: Values, given: Json, roles: str) -> Values:
    """Let one device generate and train in turn: without a stream trainer, which needs another."""
    placed = parse_role_map(roles)
    if len(placed["rollout"]) > 1 or set(placed["learner"]) != set(placed["rollout"]):
        return values
    if not _part(given, "stream_trainer") and _part(values, "stream_trainer").get("enabled"):
        values = overlay(values, {"stream_trainer": {"enabled": False}})
    can_pause = _part(values, "scheduling").get("kind") in PAUSING
    if can_pause and "at_update" not in _part(given, "scheduling"):
        values = overlay(values, {"scheduling": {"at_update": "pause"}})
    return values


def _with_room(values: Values, given: Json, roles: str) -> Values:
    """Leave memory to the learner where engines and judges share its GPUs."""
    placed = parse_role_map(roles)
    learner, rollout = set(placed["learner"]), set(placed["rollout"])
    judge = set(placed.get("judge", ()))
    if _has(values, "gpu_memory_utilization") and rollout & (learner | judge):
        kind = _part(values, "engine")["kind"]
        engine = {"kind": kind, "gpu_memory_utilization": ENGINE_SHARE}
        values = overlay({"engine": engine}, values)
    if not judge & (learner | rollout):
        return values
    rewards = {
        domain: overlay({"engine": {"gpu_memory_utilization": JUDGE_SHARE}}, reward)
        if isinstance(reward, Mapping) and reward.get("kind") == "judge"
        else reward
        for domain, reward in _part(values, "rewards").items()
    }
    return {**values, "rewards": rewards}


def _has(values: Json, setting: str) -> bool:
    """True if engines of the chosen kind have this setting."""
    kind = _part(values, "engine").get("kind")
    fields = (engine.model_fields for engine in ENGINES)
    return any(setting in each for each in fields if each["kind"].default == kind)


def _part(values: Json, name: str) -> Json:
    part = values.get(name)
    return part if isinstance(part, Mapping) else {}


def told(config: Parts) -> str:
    """Describe the devices of a configuration, and why it has them."""
    cluster = config.cluster
    named = "device_kind" in cluster.model_fields_set
    found = gpus.found_gpus()
    if cluster.device_kind == "cpu":
        devices = f"{cluster.num_devices} x {cluster.cores_per_device} CPU cores"
        slow = config.learner.compute != "bf16" and "compute" not in config.learner.model_fields_set
        dtype = "; in fp32, because these cores multiply bf16 slowly" * slow
        return f"{devices}, as named{dtype}" if named else f"{devices}: {found.reason}{dtype}"
    devices = f"{cluster.num_devices} GPUs" if cluster.num_devices > 1 else "1 GPU"
    if named or not found.names:
        return f"{devices}, as named"
    names = " and ".join(dict.fromkeys(found.names))
    streams = preset_values(config.preset).get("stream_trainer", {}).get("enabled", False)
    changed = "; no stream trainer, which needs two" * (
        streams and not config.stream_trainer.enabled and cluster.num_devices == 1
    )
    return f"{devices} of {len(found.names)} found ({names}){changed}"
