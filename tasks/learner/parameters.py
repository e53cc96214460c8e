"""What a rank of the learner needs of a model's parameters, wherever they lie.

               ReplicatedParameters (flat_parameters)    TrainedShards (sharded_parameters)
    weights    whole on every rank                       a shard on every rank
    gradients  whole on every rank, reduced by update    reduced in every backward pass
    masters    a shard on every rank                     a shard on every rank: the weights

The decoder computes with `whole` weights, its backward adds to `gradient`, the optimizer moves
`pieces`. Leaves out the arithmetic of an update (sharding).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What of one parameter a rank owns: consecutive elements, at least one."""

    name: str  # of the parameter, as in the model's checkpoint
    start: int  # the first of these elements in the flattened parameter
    is_matrix: bool  # whether weight decay may act on it
    masters: Tensor  # fp32 (n,): what the optimizer moves


class Parameters(Protocol):
    """The parameters of a decoder that scores."""

    @property
    def device(self) -> torch.device: ...

    def whole(self, name: str) -> AbstractContextManager[Tensor]:
        """A parameter to compute with, for the length of the block."""
        ...


class TrainedParameters(Parameters, Protocol):
    """The parameters of a decoder that is trained, with sums of gradients beside them."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Every parameter's shape by its name, tied ones once."""
        ...

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All that this rank owns."""
        ...

    def checksum(self) -> int:
        """A number that all ranks agree on if they were given the same weights; before the first
        update."""
        ...

    def gradient(self, name: str) -> Tensor:
        """The fp32 sum that a pass adds a parameter's whole gradient to."""
        ...

    def reduce(self, name: str) -> None:
        """Nothing is added to `gradient(name)` any more in this pass."""
        ...

    def discard(self) -> None:
        """Zero the sums, and drop what a backward pass that was interrupted has not moved there."""
        ...

    def reduced(self) -> list[Tensor]:
        """The gradient of every piece, summed over all ranks; may be changed in place.
        Collective."""
        ...

    def publish(self) -> None:
        """The pieces have changed: compute with them from now on. Collective."""
        ...

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by name, whole, until the next one is asked for."""
        ...
