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
        """Yield all that is published by name: tensors, whole or in parts along their first
        dimension, one after the other. Each is valid until the next is taken."""

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        """The shape of every tensor that is published: those of `shapes`, with few exceptions."""

    def flat(self) -> FlatWeights | None:
        """All that is published in one bf16 buffer, if it lies in one."""


def flat_weights(parameters: TrainedParameters) -> FlatWeights:
    """All that is published in one bf16 buffer, a new one unless it lies in one. Collective where
    parameters are sharded."""
    held = parameters.flat()
    if held is not None:
        return held
    slots = slots_of(parameters.exported_shapes)
    values = torch.zeros(slots[-1].end, dtype=torch.bfloat16, device=parameters.device)
    ends = {slot.name: slot.start for slot in slots}  # of what came
    for name, part in parameters.exported():
        start, ends[name] = ends[name], ends[name] + part.numel()
        values[start : ends[name]].copy_(part.reshape(-1))
    return FlatWeights(values=values, slots=slots)


_ALIGN = 64  # elements; slices of ranks begin at a multiple
Holds = Callable[[str], bool]


def every(name: str) -> bool:
    """Holds all parameters."""
    return True


class FlatParameters:
    """A module's parameters in a flat buffer of the compute dtype, on which the module works."""

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        num_slices: int = 1,
        holds: Holds = every,
        *,
        rounds: bool = False,
    ) -> None:
        """The module is in host memory and moves to the device parameter by parameter, so that
        nothing but the buffer is ever there. The size is padded to a multiple of `num_slices` so
        that equal slices cover it. holds: which of the module's parameters, by name. rounds:
        whether values are rounded to bf16, which engines load."""
        parameters = {name: each for name, each in module.named_parameters() if holds(name)}
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
            loaded = parameter.detach()
            self.view(slot.name).copy_(loaded.to(torch.bfloat16) if rounds else loaded)
            parameter.data = self.view(slot.name)
        for buffer in module.buffers():
            buffer.data = buffer.to(device)

    @contextmanager
    def whole(self, name: str) -> Iterator[Tensor]:
        yield self.view(name)

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Yield in layout order; these tensors stay valid."""
        return ((slot.name, self.view(slot.name)) for slot in self.slots)

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        return self.shapes

    def flat(self) -> FlatWeights | None:
        is_published = self.values.dtype is torch.bfloat16
        return FlatWeights(values=self.values, slots=self.slots) if is_published else None

    def forget_pass(self) -> None:
        """A pass that is interrupted leaves nothing here."""

    def checksum(self) -> int:
        return sum(fingerprint(tensor) for _, tensor in self.exported())

    def view(self, name: str) -> Tensor:
        """The values of one parameter."""
        return self._slot_of[name].of(self.values)


class ReplicatedParameters(FlatParameters):
    """Trained parameters: whole on every rank, with a buffer for the sums of their gradients."""

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        ranks: Ranks,
        holds: Holds = every,
        *,
        rounds: bool = False,
    ) -> None:
        """The module is in fp32, in host memory; the masters keep the precision that `dtype` or
        rounding loses. holds, rounds: as for `FlatParameters`."""
        held = {name: each for name, each in module.named_parameters() if holds(name)}
        loaded = {name: parameter.detach() for name, parameter in held.items()}
        super().__init__(module, dtype, ranks.device, ranks.world_size, holds, rounds=rounds)
        self._rounds = rounds
        size = self.values.numel() // ranks.world_size
        self._ranks, self._held = ranks, held
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
        for name, parameter in held.items():
            if parameter.requires_grad:
                drain = self._drain(name)
                parameter.register_post_accumulate_grad_hook(drain)  # type: ignore[no-untyped-call]

    def gradient(self, name: str) -> Tensor:
        return self._slot_of[name].of(self.gradients)

    def reduce(self, name: str) -> None:
        """Do nothing: the update reduces all gradients at once."""

    def discard(self) -> None:
        self.gradients.zero_()
        for parameter in self._held.values():
            parameter.grad = None

    def reduced(self) -> list[Tensor]:
        own = self._ranks.reduce_scatter(self.gradients)
        return [own[start - self._start : end - self._start] for _, start, end in self._owned()]

    def publish(self) -> None:
        masters = self._masters.to(torch.bfloat16) if self._rounds else self._masters
        self.values[self._start : self._stop].copy_(masters)
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
