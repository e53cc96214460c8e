"""A model's parameters as views into one flat buffer; trained ones with one flat fp32 buffer for
their gradients.

Flat, so that a rank can own a contiguous slice whatever the layers look like: reduce, update and
gather are one call each. Tied weights lie in it once. Leaves out who owns which slice (sharding).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ALIGN = 64  # elements; keeps every view aligned for vector loads and for 64-bit fingerprints


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where a parameter lies."""

    name: str  # its name in the checkpoint
    shape: torch.Size  # its shape
    start: int  # first element in the flat buffer
    end: int  # one past the last element


class FlatParameters:
    """Moves a module's parameters into a flat buffer of the compute dtype; the module keeps working
    on views of it."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, num_slices: int) -> None:
        """The size is padded to a multiple of `num_slices` so that equal slices cover it."""
        parameters = dict(module.named_parameters())
        self.slots = tuple(_layout(parameters))
        self.num_elements = self.slots[-1].end
        unit = _ALIGN * num_slices
        device = next(iter(parameters.values())).device
        self.values = torch.zeros(-(-self.num_elements // unit) * unit, dtype=dtype, device=device)
        self._slot_of = {slot.name: slot for slot in self.slots}
        for slot in self.slots:
            parameter = parameters[slot.name]
            self.view(slot.name).copy_(parameter.detach())
            parameter.data = self.view(slot.name)

    def view(self, name: str) -> Tensor:
        """The values of one parameter."""
        slot = self._slot_of[name]
        return self.values[slot.start : slot.end].view(slot.shape)

    def named_views(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by name, in layout order."""
        return ((slot.name, self.view(slot.name)) for slot in self.slots)


class TrainedParameters(FlatParameters):
    """Flat parameters with a place for the sums of their gradients."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, num_slices: int) -> None:
        super().__init__(module, dtype, num_slices)
        self.gradients = torch.zeros_like(self.values, dtype=torch.float32)

    def gradient(self, name: str) -> Tensor:
        """The accumulated fp32 gradient of one parameter."""
        slot = self._slot_of[name]
        return self.gradients[slot.start : slot.end].view(slot.shape)


def _layout(parameters: dict[str, nn.Parameter]) -> Iterator[Slot]:
    start = 0
    for name, parameter in parameters.items():
        yield Slot(name=name, shape=parameter.shape, start=start, end=start + parameter.numel())
        start += -(-parameter.numel() // _ALIGN) * _ALIGN
