"""Turns a description of devices and their roles into specifications of worker processes. Pure.

"rollout: 0-1, learner: 0-1, judge: 1, environment: 2" + 2 CPU devices  ->  control, engine-0,
engine-1, learner-0, learner-1, judge-0, environment-0, environment-1
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import DerivedSeconds
from artifacts.urls import Location, NetworkAddress
from tasks.cluster.ports import LOOPBACK, Wish
from tasks.cluster.process_environment import NO_BARS, threads
from tasks.scheduling.parallelism import device_groups

DeviceRole = Literal["rollout", "learner", "judge"]
ROLES: tuple[DeviceRole, ...] = ("rollout", "learner", "judge")
MOST_DEVICES = 100_000  # of any cluster: a slip of the pen shall not fill the memory
QUIET_LIBRARIES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
ENVIRONMENT = "environment"  # the role without a device: it has a number of workers


def parse_role_map(roles: str) -> dict[DeviceRole, tuple[int, ...]]:
    """Parse "rollout: 0-1,4; learner: 0" to device numbers by role. Parts are separated by ';' or
    by a comma before a role's name. Skips environment workers, which have no device. Raises
    ValueError for other text, and if no device generates. Without the role learner nothing trains
    (`flows.config.consistency`)."""
    parsed: dict[DeviceRole, tuple[int, ...]] = {}
    for part in _role_parts(roles):
        name, _, ranges = part.partition(":")
        if name.strip() == ENVIRONMENT:
            continue
        role = next((known for known in ROLES if known == name.strip()), None)
        if role is None or not ranges.strip():
            raise ValueError(
                "roles must read like 'rollout: 0-1, learner: 0-1' with roles"
                f" {', '.join((*ROLES, ENVIRONMENT))}, got {part!r} in {roles!r}"
            )
        if role in parsed:
            raise ValueError(f"roles names {role!r} twice in {roles!r}; join its device ranges")
        parsed[role] = parse_ranges(ranges, roles)
    if "rollout" not in parsed:
        raise ValueError(
            f"roles must place rollout and learner, rollout missing in {roles!r}; add 'rollout: 0'"
        )
    parsed.setdefault("learner", ())
    return parsed


def num_environment_workers(roles: str) -> int:
    """Number of environment workers: "environment: 2" means two; 0 if the role is not named."""
    parts = [part.partition(":") for part in _role_parts(roles)]
    told = [number.strip() for name, _, number in parts if name.strip() == ENVIRONMENT]
    if len(told) > 1:
        raise ValueError(f"roles names {ENVIRONMENT!r} twice in {roles!r}; add their numbers up")
    if not told:
        return 0
    if not told[0].isdecimal() or int(told[0]) < 1:
        raise ValueError(
            f"the role {ENVIRONMENT} has no devices but a number of workers, like 'environment: 2',"
            f" got {told[0]!r} in {roles!r}; give a number of at least 1, or drop the role"
        )
    return int(told[0])


def _role_parts(roles: str) -> list[str]:
    parts: list[str] = []
    for piece in roles.replace(";", ",").split(","):
        if ":" in piece or not parts:
            parts.append(piece)
        else:
            parts[-1] += f",{piece}"
    return parts


def parse_ranges(ranges: str, roles: str) -> tuple[int, ...]:
    devices: list[int] = []
    for piece in ranges.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(
                f"device ranges must be numbers like 0-3,6, got {piece.strip()!r} in {roles!r}"
            )
        if int(last or first) < int(first):
            raise ValueError(
                f"device ranges must count upwards, got {piece.strip()!r} in {roles!r}; write"
                f" {last}-{first}"
            )
        if int(last or first) >= MOST_DEVICES:
            raise ValueError(
                f"device ranges must have numbers below {MOST_DEVICES}, got {piece.strip()!r} in"
                f" {roles!r}; correct it"
            )
        devices += range(int(first), int(last or first) + 1)
    if len(set(devices)) != len(devices):
        raise ValueError(
            f"device ranges must name each device once, got {ranges.strip()!r} in {roles!r}"
        )
    return tuple(devices)


ACTOR_OF: Mapping[DeviceRole, str] = {
    "rollout": "engine",
    "learner": "learner",
    "judge": "judge",
}  # first part of the names of a role's workers
# slots for rollout and reward of a round that waits for newer weights, and of the evaluation that
# these weights wait for; with fewer slots they would wait for each other for ever
COORDINATORS = 4


class ClusterConfig(FrozenConfig):
    """The devices of the machine or cluster, and their roles."""

    device_kind: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description=(
            "What a device is: a set of CPU cores, or a GPU. auto takes the GPUs of the machine on"
            " which the run is started, with the preset's roles spread over them, or else cores."
        ),
    )
    num_devices: int = Field(
        2, ge=1, description="Number of devices of the machine or of the whole cluster."
    )
    cores_per_device: int = Field(
        1, ge=1, le=4096, description="CPU cores that make one device (device_kind cpu only)."
    )
    devices_per_host: int = Field(
        8,
        ge=1,
        description=(
            "Devices of one host; they are numbered host by host, and no engine spans two hosts."
        ),
    )
    roles: str = Field(
        "rollout: 0-1, learner: 0-1",
        description=(
            "Which devices do what, as 'role: ranges' parts; the same device in two roles takes"
            " turns. `judge` is optional, and `learner` where trains is off. So is `environment`,"
            " which has no device: its number says how many workers environments step in, instead"
            " of beside each engine."
        ),
    )
    scheduler_address: NetworkAddress | None = Field(
        None,
        description=(
            "Address of a running Dask scheduler (tls://host:port, or tcp://host:port in a network"
            " where everybody may run code in its workers); empty starts a local cluster for the"
            " run."
        ),
    )
    scheduler_host: NetworkAddress = Field(
        "127.0.0.1",
        description=(
            "Address that the scheduler of a local cluster listens on. It lets in who has the run's"
            " certificate, and who is let in may run any code in the workers."
        ),
    )
    tls_ca_file: Location = Field(
        "",
        description=(
            "Authority, PEM: whoever has a certificate of it is let in. Empty makes a certificate"
            " for the run, or takes Dask's own settings for a cluster that it joins."
        ),
    )
    tls_cert: Location = Field("", description="The run's certificate by that authority, PEM.")
    tls_key: Location = Field("", description="The key of that certificate, PEM.")
    scheduler_port: int = Field(0, ge=0, le=65535, description="Port of that; 0 takes a free one.")
    dashboard_port: int = Field(
        8787,
        ge=0,
        le=65535,
        description="Port of the Dask dashboard of a local cluster; 0 takes a free one.",
    )
    start_deadline_s: DerivedSeconds = 120.0  # for the workers of the cluster to come

    @model_validator(mode="after")
    def _placement_is_possible(self) -> Self:
        device_map(self)
        num_environment_workers(self.roles)
        self._check_tls()
        return self

    @property
    def makes_certificate(self) -> bool:
        """True if the run makes its own certificate: no scheduler or authority is given."""
        return not self.scheduler_address and not self.tls_ca_file

    def _check_tls(self) -> None:
        if len({bool(self.tls_ca_file), bool(self.tls_cert), bool(self.tls_key)}) > 1:
            raise ValueError(
                "cluster.tls_ca_file, .tls_cert and .tls_key go together, got"
                f" {self.tls_ca_file!r}, {self.tls_cert!r} and {self.tls_key!r}; give all of them"
            )
        if self.tls_ca_file and (self.scheduler_address or "tls://").partition("://")[0] != "tls":
            raise ValueError(
                "cluster.scheduler_address must begin with tls:// where cluster.tls_ca_file is"
                f" given, got {self.scheduler_address!r}; start its scheduler and workers with the"
                " certificates, or leave them out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One Dask worker process."""

    name: str  # "control", "engine-0", "environment-1"; the flow finds workers by name
    role: DeviceRole | Literal["control", "environment"]  # which actors the worker may hold
    device: str | None = None  # "cpu:0" or "cuda:3"; None for workers without a device
    core_ids: tuple[int, ...] = ()  # CPU cores that it is pinned to; empty means all
    num_threads: int  # Dask threads
    resources: tuple[tuple[str, float], ...]  # Dask resources that it announces
    # threads of OpenMP, MKL and OpenBLAS in a process that is pinned to no core
    library_threads: int = 1

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the process, among them the one GPU that it may see."""
        env = threads(len(self.core_ids) or self.library_threads) | NO_BARS | QUIET_LIBRARIES
        env["VLLM_LOGGING_LEVEL"] = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
        if self.device is not None and self.device.startswith("cuda:"):
            index = int(self.device.removeprefix("cuda:"))
            # a batch system may have set it: then the index-th of these
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            allotted = [name for name in visible.split(",") if name]
            env["CUDA_VISIBLE_DEVICES"] = allotted[index] if index < len(allotted) else str(index)
        return env


def learners_per_machine(config: ClusterConfig) -> int:
    """The learner devices of each machine, whose sharded parameters are whole there, if several
    have equally many, two or more, machine after machine; else all learner devices."""
    hosts = [device // config.devices_per_host for device in device_map(config)["learner"]]
    each = len(hosts) // max(1, len(set(hosts)))
    is_even = hosts == [host for host in dict.fromkeys(hosts) for _ in range(each)]
    return each if is_even and each > 1 else len(hosts)


def device_map(config: ClusterConfig) -> dict[DeviceRole, tuple[int, ...]]:
    """Device numbers by role. Raises ValueError for a number beyond num_devices."""
    placed = parse_role_map(config.roles)
    for role, devices in placed.items():
        beyond = [device for device in devices if device >= config.num_devices]
        if beyond:
            raise ValueError(
                f"roles must use devices 0 to {config.num_devices - 1}, got {beyond[0]} for {role};"
                " raise num_devices or change roles"
            )
    return placed


def engine_members(config: ClusterConfig, size: int) -> dict[str, tuple[str, ...]]:
    """The workers whose devices each engine of this tensor-parallel size holds, by the name of the
    engine and its first worker. Raises ValueError if the devices cannot be divided like that."""
    placed = device_map(config)["rollout"]
    worker_of = {device: f"engine-{index}" for index, device in enumerate(placed)}
    groups = device_groups(placed, size, config.devices_per_host)
    return {worker_of[group[0]]: tuple(worker_of[device] for device in group) for group in groups}


def worker_specs(config: ClusterConfig) -> tuple[WorkerSpec, ...]:
    """Specifications of all worker processes of the cluster: one for the coordinators, one for each
    device of each role, and the environment workers."""
    placed = device_map(config)
    control = WorkerSpec(
        name="control",
        role="control",
        num_threads=COORDINATORS + 2,
        resources=(("coordinator", float(COORDINATORS)),),
    )
    workers = [
        _device_worker(config, role, index, device)
        for role in ROLES
        for index, device in enumerate(placed.get(role, ()))
    ]
    environments = [
        WorkerSpec(
            name=f"{ENVIRONMENT}-{index}",
            role="environment",
            num_threads=2,
            resources=((ENVIRONMENT, 1.0),),
        )
        for index in range(num_environment_workers(config.roles))
    ]
    return (control, *workers, *environments)


def _device_worker(config: ClusterConfig, role: DeviceRole, index: int, device: int) -> WorkerSpec:
    on_cpu = config.device_kind != "cuda"  # auto is never left to a run that begins
    first_core = device * config.cores_per_device
    num_workers = sum(len(devices) for devices in device_map(config).values())
    return WorkerSpec(
        name=f"{ACTOR_OF[role]}-{index}",
        role=role,
        device=f"{'cpu' if on_cpu else 'cuda'}:{device}",
        core_ids=tuple(range(first_core, first_core + config.cores_per_device)) if on_cpu else (),
        num_threads=2,
        resources=((role, 1.0),),
        library_threads=max(1, len(os.sched_getaffinity(0)) // num_workers),
    )


def wishes_of(config: ClusterConfig) -> tuple[Wish, Wish]:
    """The configured ports of a scheduler that is started here and of its dashboard."""
    scheduler, dashboard = (
        Wish(
            what=what,
            port=getattr(config, field),
            is_named=field in config.model_fields_set,
            cure=f"in cluster.{field}",
            host=host,
        )
        for what, field, host in (
            ("the Dask scheduler", "scheduler_port", config.scheduler_host),
            ("the Dask dashboard", "dashboard_port", LOOPBACK),
        )
    )
    return scheduler, dashboard
