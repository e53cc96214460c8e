"""The parameters of a model on a rank of the learner: whole on every rank, or sharded.

               ReplicatedParameters (here)               TrainedShards (sharded_parameters)
    weights    whole on every rank                       a shard on every rank
    gradients  whole on every rank, reduced by update    reduced in every backward pass
    masters    a shard on every rank                     a shard on every rank: the weights

Replicated parameters are views into one flat buffer, whatever the layers look like: a rank owns a
contiguous slice (ZeRO-1), and reduce and gather are one call each.

    gradients (every rank, whole) --reduce-scatter--> own slice -> the optimizer moves own masters
    -> values --all-gather--> whole
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from artifacts.weights import fingerprint
from tasks.engines.transports.base import FlatWeights, ParameterSlot, slots_of
from tasks.learner.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The consecutive elements, at least one, of one parameter that a rank owns."""

    name: str  # of the parameter, as in the model's checkpoint
    start: int  # the first of these elements in the flattened parameter
    is_matrix: bool  # True if weight decay may act on it
    masters: Tensor  # fp32 (n,): what the optimizer moves


class Parameters(Protocol):
    """The parameters of a decoder that only scores."""

    @property
    def device(self) -> torch.device: ...

    @property
    def compute(self) -> torch.dtype:
        """The dtype in which the decoder computes."""

    def whole(self, name: str) -> AbstractContextManager[Tensor]:
        """Provide a parameter as a whole tensor within the block."""


class TrainedParameters(Parameters, Protocol):
    """The parameters of a decoder that is trained, and the sums of their gradients."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Every parameter's shape by its name, tied ones once."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces that this rank owns."""

    def checksum(self) -> int:
        """A checksum of the loaded weights, for all ranks to agree on before the first update."""

    def gradient(self, name: str) -> Tensor:
        """The fp32 sum to which a pass adds the gradient of the whole parameter."""

    def reduce(self, name: str) -> None:
        """Mark the parameter's gradient as complete for this pass, so that it can be reduced."""

    def discard(self) -> None:
        """Zero the sums of gradients, and drop those that an interrupted pass left elsewhere."""

    def reduced(self) -> list[Tensor]:
        """Every piece's gradient, summed over all ranks, to be changed in place. Collective."""

    def publish(self) -> None:
        """Make the updated pieces the weights that the decoder computes with. Collective."""

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter by name, whole; each is valid until the next is taken."""


def flat_weights(parameters: TrainedParameters) -> FlatWeights:
    """All parameters in one bf16 buffer: the one on which replicated parameters compute in bf16,
    else a new one. Collective where parameters are sharded."""
    if isinstance(parameters, FlatParameters) and parameters.values.dtype is torch.bfloat16:
        return FlatWeights(values=parameters.values, slots=parameters.slots)
    slots = slots_of(parameters.shapes)
    values = torch.zeros(slots[-1].end, dtype=torch.bfloat16, device=parameters.device)
    slot_of = {slot.name: slot for slot in slots}
    for name, tensor in parameters.exported():
        slot_of[name].of(values).copy_(tensor)
    return FlatWeights(values=values, slots=slots)


_ALIGN = 64  # elements; slices of ranks begin at a multiple


class FlatParameters:
    """A module's parameters in a flat buffer of the compute dtype, on which the module works."""

    def __init__(
        self, module: nn.Module, dtype: torch.dtype, device: torch.device, num_slices: int = 1
    ) -> None:
        """The module is in host memory and moves to the device parameter by parameter, so that
        nothing but the buffer is ever there. The size is padded to a multiple of `num_slices` so
        that equal slices cover it."""
        parameters = dict(module.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.slots = slots_of(self.shapes)
        self.num_elements = self.slots[-1].end
        unit = _ALIGN * num_slices
        self.device, self.compute = device, dtype
        size = -(-self.num_elements // unit) * unit
        self.values = torch.zeros(size, dtype=dtype, device=self.device)
        self._slot_of = {slot.name: slot for slot in self.slots}
        for slot in self.slots:
            parameter = parameters[slot.name]
            self.view(slot.name).copy_(parameter.detach())
            parameter.data = self.view(slot.name)
        for buffer in module.buffers():
            buffer.data = buffer.to(device)

    @contextmanager
    def whole(self, name: str) -> Iterator[Tensor]:
        yield self.view(name)

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Yield in layout order; these tensors stay valid."""
        return ((slot.name, self.view(slot.name)) for slot in self.slots)

    def view(self, name: str) -> Tensor:
        """The values of one parameter."""
        return self._slot_of[name].of(self.values)


class ReplicatedParameters(FlatParameters):
    """Trained parameters: whole on every rank, with a buffer for the sums of their gradients."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, ranks: Ranks) -> None:
        """The module is in fp32, in host memory; the masters keep the precision that `dtype`
        loses."""
        loaded = {name: parameter.detach() for name, parameter in module.named_parameters()}
        super().__init__(module, dtype, ranks.device, ranks.world_size)
        size = self.values.numel() // ranks.world_size
        self._ranks, self._module = ranks, module
        self._start, self._stop = ranks.rank * size, (ranks.rank + 1) * size
        self._masters = torch.zeros(size, dtype=torch.float32, device=ranks.device)
        for slot, start, end in self._owned():
            own = loaded.pop(slot.name).flatten()[start - slot.start : end - slot.start]
            self._masters[start - self._start : end - self._start].copy_(own)
        loaded.clear()
        self.gradients = torch.zeros_like(self.values, dtype=torch.float32)
        self.pieces = tuple(
            Piece(
                name=slot.name,
                start=start - slot.start,
                is_matrix=len(slot.shape) > 1,
                masters=self._masters[start - self._start : end - self._start],
            )
            for slot, start, end in self._owned()
        )
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                drain = self._drain(name)
                parameter.register_post_accumulate_grad_hook(drain)  # type: ignore[no-untyped-call]

    def checksum(self) -> int:
        return sum(fingerprint(tensor) for _, tensor in self.exported())

    def gradient(self, name: str) -> Tensor:
        return self._slot_of[name].of(self.gradients)

    def reduce(self, name: str) -> None:
        """Do nothing: the update reduces all gradients at once."""

    def discard(self) -> None:
        self.gradients.zero_()
        self._module.zero_grad(set_to_none=True)

    def reduced(self) -> list[Tensor]:
        own = self._ranks.reduce_scatter(self.gradients)
        return [own[start - self._start : end - self._start] for _, start, end in self._owned()]

    def publish(self) -> None:
        self.values[self._start : self._stop].copy_(self._masters)
        self._ranks.all_gather(self.values)

    def _owned(self) -> Iterator[tuple[ParameterSlot, int, int]]:
        """The parts of parameters in this rank's slice: slot, first element, one past the last."""
        for slot in self.slots:
            start, end = max(slot.start, self._start), min(slot.end, self._stop)
            if start < end:
                yield slot, start, end

    def _drain(self, name: str) -> Callable[[Tensor], None]:
        """A hook that adds a gradient to the fp32 sum and drops it: one exists at a time."""

        def add(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self.gradient(name).add_(parameter.grad)
            parameter.grad = None

        return add
