"""Which parts of the cluster can go over from generating to training by themselves: no engine and
no learner communication group is ever split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Engines and learners that can be told apart from the rest of the cluster: what is freed, is
    freed whole."""

    engines: tuple[str, ...]  # rollout replicas on its devices
    learners: tuple[str, ...]  # learner ranks on its devices, whole communication groups


def separable_groups(
    engines: Mapping[str, frozenset[str]],
    learners: Mapping[str, frozenset[str]],
    communication_groups: Iterable[Sequence[str]],
) -> tuple[DeviceGroup, ...]:
    """The smallest parts of the cluster that share no device, no engine and no learner
    communication group with another.

    `engines` and `learners`: devices by actor name. `communication_groups`: learners that cannot
    compute without each other (tensor- or pipeline-parallel ranks; purely data-parallel ranks are
    alone).
    """
    joined = [*engines.values(), *learners.values()]
    joined += [
        frozenset[str]().union(*(learners[name] for name in names))
        for names in communication_groups
    ]
    parts: list[frozenset[str]] = []
    for devices in joined:
        touching = [part for part in parts if part & devices]
        parts = [part for part in parts if not part & devices] + [devices.union(*touching)]
    return tuple(
        DeviceGroup(
            engines=tuple(name for name, devices in engines.items() if devices <= part),
            learners=tuple(name for name, devices in learners.items() if devices <= part),
        )
        for part in sorted(parts, key=sorted)
    )
