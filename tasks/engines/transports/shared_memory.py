"""The transport `ipc`: engines map the memory in which the learner's weights lie.

    learner rank: flat bf16 buffer ──handle, by device──▶ engine's worker: the same memory, mapped

A handle is of the whole buffer: on a GPU torch's own (CUDA IPC), under the card's UUID, since each
process counts the cards that it sees from 0; on CPUs the number of an open file without a name,
which the system frees with the last process that has it. Every worker takes the handle of its own
device. Nothing is copied on the learner's side; the engine copies into its parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from tasks.engines.base import TransferLost
from tasks.engines.transports.base import (
    FlatWeights,
    OfferedWeights,
    WeightStream,
)

_DEVICE = 6  # place of the device among the arguments of `rebuild_cuda_tensor`


class SharedMemoryTransport:
    """Both sides of `ipc`; the learner's side holds the buffer while it is offered."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._offered: Tensor | None = None

    def offer(
        self, weights: FlatWeights, version: int, path: str, members: Sequence[str]
    ) -> OfferedWeights:
        """On a CPU the buffer moves to shared memory when it is first offered; its views follow."""
        self._offered = weights.values
        return OfferedWeights(
            version=version,
            path=path,
            digest="",
            kind="ipc",
            slots=tuple(weights.slots),
            sources={_key(weights.values.device): _handle(weights.values)},
            deadline_s=self._deadline_s,
        )

    def send(self) -> None:
        """Do nothing: engines read by themselves."""

    def withdraw(self) -> None:
        """Let go of the buffer; on a GPU of what torch keeps for engines that have read it, too."""
        is_cuda = self._offered is not None and self._offered.is_cuda
        self._offered = None
        if is_cuda:
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]

    @contextmanager
    def open(
        self, offered: OfferedWeights, device: torch.device, member: str
    ) -> Iterator[WeightStream]:
        key = _key(device)
        if key not in offered.sources:
            raise ValueError(
                f"transport ipc needs a learner rank on the device of {member} ({key}), the ranks"
                f" have {', '.join(sorted(offered.sources))}; give both the same devices, or set"
                " learner.transport=broadcast"
            )
        values = _mapped(offered.sources[key], device, offered.version)
        tensors = {slot.name: slot.of(values) for slot in offered.slots}
        try:
            yield WeightStream(shapes=offered.shapes, buckets=iter([tensors]))
        finally:
            tensors.clear()
            del values
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def _key(device: torch.device) -> str:
    """The device's name in every process of the machine."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_properties(device).uuid)
    return device.type


def _handle(values: Tensor) -> Any:  # Any: picklable arguments of `_mapped`
    if values.is_cuda:
        return reduce_tensor(values)[1]  # type: ignore[no-untyped-call]
    assert not values.storage_offset(), "the buffer begins with its storage"
    descriptor, num_bytes = values.untyped_storage()._share_fd_cpu_()
    return os.getpid(), descriptor, num_bytes


def _mapped(handle: Any, device: torch.device, version: int) -> Tensor:  # Any: of `_handle`
    """The learner's buffer, bf16 (n,). Raises TransferLost if its process is gone."""
    if device.type == "cuda":
        arguments = list(handle)
        arguments[_DEVICE] = torch.cuda.current_device() if device.index is None else device.index
        try:
            mapped: Tensor = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # the driver knows the handle no more
            raise TransferLost(_gone(version, str(error))) from error
        return mapped
    process, descriptor, num_bytes = handle
    try:
        opened = os.open(Path("/proc") / str(process) / "fd" / str(descriptor), os.O_RDWR)
    except OSError as error:
        raise TransferLost(_gone(version, f"process {process}: {error.strerror}")) from error
    try:
        if os.fstat(opened).st_size < num_bytes:
            raise TransferLost(_gone(version, f"process {process} has another file there"))
        # torch's own way between processes; the stubs lack it
        share = torch.UntypedStorage._new_shared_fd_cpu  # type: ignore[attr-defined]
        storage = share(opened, num_bytes)
    finally:
        os.close(opened)
    return torch.empty(0, dtype=torch.bfloat16).set_(storage)


def _gone(version: int, reason: str) -> str:
    return f"the learner rank that offered version {version} is gone, its memory with it ({reason})"
