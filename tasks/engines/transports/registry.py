"""Chooses a transport: for a run by the placement of its roles, in workers of engines by what was
offered."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from artifacts.records import WeightsRef
from tasks.cluster.devices import ClusterConfig, device_map
from tasks.engines.transports.base import (
    OfferedWeights,
    TransportKind,
    WeightStream,
    WeightTransport,
    file_stream,
)

if TYPE_CHECKING:
    import torch


def placed_transport(cluster: ClusterConfig) -> TransportKind:
    """The fastest transport for this placement. On GPUs, `ipc` if every engine's device is a
    learner's, too; `broadcast` if rank 0 shares its device with no engine, which NCCL refuses, on
    one machine, as engines listen on its loopback address alone. Else the file."""
    roles = device_map(cluster)
    if cluster.device_kind != "cuda" or not roles["learner"]:
        return "file"
    engines, learners = set(roles["rollout"]), roles["learner"]
    if engines <= set(learners):
        return "ipc"
    hosts = {device // cluster.devices_per_host for device in (*engines, *learners)}
    return "broadcast" if learners[0] not in engines and len(hosts) == 1 else "file"


def transport_of(kind: TransportKind, deadline_s: float, host: str = "") -> WeightTransport:
    """Make one side of a transport that is not the file. host: as for `broadcast`."""
    # imported when needed, torch with them: configurations read `placed_transport`
    if kind == "broadcast":
        from tasks.engines.transports.broadcast import BroadcastTransport

        return BroadcastTransport(host, deadline_s)
    assert kind == "ipc", "a file has no sides"
    from tasks.engines.transports.shared_memory import SharedMemoryTransport

    return SharedMemoryTransport(deadline_s)


@contextmanager
def opened(
    weights: WeightsRef,
    device: torch.device,
    member: str,
    transports: MutableMapping[TransportKind, WeightTransport],
) -> Iterator[WeightStream]:
    """The tensors of a version, offered or in its file, within the block. transports: those that
    this worker has used; one that is new joins them. Raises as `WeightTransport.open`, and
    ValueError for a damaged file."""
    if not isinstance(weights, OfferedWeights):
        yield file_stream(weights.path)
        return
    if weights.kind not in transports:
        transports[weights.kind] = transport_of(weights.kind, weights.deadline_s)
    with transports[weights.kind].open(weights, device, member) as stream:
        yield stream
