"""The seam `WeightTransport`: how a weight version gets from learner ranks to engines.

    learner rank   offer ─▶ OfferedWeights ──── with the call that loads ───▶ open    engine worker
                   send  ════════════ the tensors, bucket by bucket ════════▶  │
                   withdraw ◀───────────────── all engines have loaded ───────┘

    file        safetensors in memory (`artifacts.weights`): CPUs, elastic workers, any engine
    ipc         engines map the learner's memory: each shares its GPU with a learner rank
    broadcast   rank 0 sends to all engines: engines and learner have GPUs of their own

A file has no state on either side, so that it is no class: a `WeightsRef` that is not offered is
one. Whatever the way, `vllm.worker` reads back what it holds, and the weight check compares that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from artifacts.records import WeightsRef

if TYPE_CHECKING:  # configurations name a transport, and are read without torch
    import torch
    from torch import Tensor

TransportKind = Literal["file", "ipc", "broadcast"]
BUCKET_ELEMENTS = 1 << 27  # of a bucket, 256 MiB; more where one group of modules is larger
_ALIGN = 64  # elements; keeps every view aligned for vector loads and for 64-bit fingerprints


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSlot:
    """The name, shape and range of a parameter in the flat buffer."""

    name: str  # its name in the checkpoint
    shape: torch.Size  # its shape
    start: int  # first element in the flat buffer
    end: int  # one past the last element

    def of(self, values: Tensor, offset: int = 0) -> Tensor:
        """This parameter as a view of a flat buffer whose first element has number `offset`."""
        return values[self.start - offset : self.end - offset].view(self.shape)


def slots_of(shapes: Mapping[str, torch.Size]) -> tuple[ParameterSlot, ...]:
    """Lay out parameters one after the other, each aligned, in the mapping's order."""
    slots: list[ParameterSlot] = []
    start = 0
    for name, shape in shapes.items():
        size = shape.numel()
        slots.append(ParameterSlot(name=name, shape=shape, start=start, end=start + size))
        start += -(-size // _ALIGN) * _ALIGN
    return tuple(slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """How a run's weights get from its learner to its engines."""

    kind: TransportKind  # the way
    members: tuple[str, ...] = ()  # the workers of all engines: "engine-0/0", "engine-0/1"
    deadline_s: float = 300.0  # for a whole transfer, on both sides


BY_FILE = TransferPlan(kind="file")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatWeights:
    """All parameters of a model in one buffer."""

    values: Tensor  # bf16 (n,), on the rank's device; what lies between parameters is padding
    slots: Sequence[ParameterSlot]  # in layer order


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedWeights(WeightsRef):
    """A weight version that learner ranks hold ready for engines. Its path is where a file would
    be: it is written on demand alone. Its digest is empty: the attestations tell it."""

    kind: TransportKind  # how engines take it
    slots: tuple[ParameterSlot, ...]  # where each parameter lies in the flat buffer
    sources: Mapping[str, Any]  # what the kind needs to reach the tensors; handles, addresses
    deadline_s: float  # for the whole transfer, on both sides

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {slot.name: slot.shape for slot in self.slots}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStream:
    """A weight version as an engine takes it."""

    shapes: Mapping[str, torch.Size]  # of all its tensors, by checkpoint name
    # tensors by name, each bucket valid until the next is taken; the parts of a fused parameter
    # (q, k and v; gate and up) come in one bucket
    buckets: Iterator[Mapping[str, Tensor]]


class WeightTransport(Protocol):
    """One way from learner ranks to engines. `offer`, `send` and `withdraw` are called on learner
    ranks, `open` in the workers of engines; a process calls them from one thread."""

    def offer(
        self, weights: FlatWeights, version: int, path: str, members: Sequence[str]
    ) -> OfferedWeights:
        """Make a version available, in place of an earlier one. members: the workers of all
        engines, which will open it. Until `withdraw` the values must not change."""

    def send(self) -> None:
        """Send what is offered to all members, if that takes the learner's doing. Raises
        TransferLost with the members that are missing, at the latest after the deadline."""

    def withdraw(self) -> None:
        """Let go of what is offered: all members have loaded it. Called from another thread while
        `send` runs, ends it: the publication has failed."""

    def open(
        self, offered: OfferedWeights, device: torch.device, member: str
    ) -> AbstractContextManager[WeightStream]:
        """The offered tensors, on this device where the learner's are on one of its kind, within
        the block. Raises TransferLost if the learner, or another member, is gone or late."""


def file_stream(path: str) -> WeightStream:
    """The tensors of a weight file, in one bucket. Raises ValueError for a damaged file."""
    from artifacts.weights import read_weights  # torch with it

    tensors = dict(read_weights(path))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return WeightStream(shapes=shapes, buckets=iter([tensors]))


def buckets_of(
    slots: Sequence[ParameterSlot], most_elements: int = BUCKET_ELEMENTS
) -> list[Sequence[ParameterSlot]]:
    """Cut slots into buckets of neighbours. Siblings of the module tree stay together: the parts
    that an engine fuses are siblings (`self_attn.q_proj`, `self_attn.k_proj`)."""
    families: list[list[ParameterSlot]] = []
    for slot in slots:
        if families and _parent(families[-1][0]) == _parent(slot):
            families[-1].append(slot)
        else:
            families.append([slot])
    buckets: list[list[ParameterSlot]] = []
    for family in families:
        if buckets and family[-1].end - buckets[-1][0].start <= most_elements:
            buckets[-1] += family
        else:
            buckets.append(family)
    return [tuple(bucket) for bucket in buckets]


def _parent(slot: ParameterSlot) -> str:
    """The module around the parameter's module: "a.b" of "a.b.q_proj.weight"."""
    return ".".join(slot.name.split(".")[:-2])
