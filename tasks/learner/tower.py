"""The vision tower of a policy: pictures to the embeddings of their tokens.

    content of a picture ─▶ patches ─▶ tower ─▶ (tokens, hidden)       in place of embeddings
                                          └───▶ (tokens, levels hidden)  behind the first layers

Each distinct picture of a row is computed once, whatever number of responses follow it. A frozen
tower computes a picture once in a run, and keeps its embeddings up to a bound of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from artifacts.models.picture_processor import Patches
from artifacts.pictures import LatestMade
from tasks.learner.adapters import AdapterParameters
from tasks.learner.parameters import FlatParameters, ReplicatedParameters
from tasks.learner.pictures import NumberedPicture

if TYPE_CHECKING:
    from tasks.learner.sharded_parameters import TrainedShards

KEPT_BYTES = 256 * 2**20  # of embeddings that a frozen tower has computed
PREFIX = "model.visual."  # of the names of a tower's parameters


def is_of_tower(name: str) -> bool:
    """True for the name of a parameter of the vision tower."""
    return name.startswith(PREFIX)


def is_of_decoder(name: str) -> bool:
    """True for the name of any other parameter."""
    return not is_of_tower(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The pictures of a run, and whether what sees them is trained."""

    read: Callable[[str], Patches]  # by a picture's content
    is_trained: bool


class Tower:
    """A vision tower, and where it finds pictures. All calls come from one thread."""

    def __init__(self, visual: Any, pictures: Pictures, device: torch.device) -> None:
        """visual: transformers' module, of no useful type."""
        self._visual, self._read, self._device = visual, pictures.read, device
        self.is_trained = pictures.is_trained
        self._kept = LatestMade(self._frozen, lambda made: made.nbytes, KEPT_BYTES)

    def embedded(self, pictures: Sequence[NumberedPicture]) -> Tensor:
        """The embeddings of the pictures' tokens, and beside them what is added behind each of the
        decoder's first layers (Qwen3-VL's DeepStack): (all their tokens, (1 + levels) hidden); with
        a graph behind them if the tower is trained and gradients are on."""
        if self.is_trained:
            return self._computed([picture.content for picture in pictures])
        return torch.cat([self._kept.of(picture.content) for picture in pictures])

    @torch.no_grad()
    def _frozen(self, content: str) -> Tensor:
        return self._computed([content])

    def _computed(self, contents: Sequence[str]) -> Tensor:
        read = [self._read(content) for content in contents]
        pixels = torch.cat([torch.from_numpy(each.values) for each in read])
        grids = torch.tensor([each.grid for each in read])
        output = self._visual(
            pixels.to(self._device, self._visual.dtype), grid_thw=grids.to(self._device)
        )
        levels = getattr(output, "deepstack_features", None) or ()
        return torch.cat([output.pooler_output, *levels], 1)


def tower_of(model: Any, pictures: Pictures | None, device: torch.device) -> Tower | None:
    """The tower of a transformers model, frozen if it is not to be trained; None for a model of
    text alone."""
    visual = getattr(model.base_model, "visual", None)
    if visual is None:
        return None
    assert pictures is not None, "a model with a tower is told where pictures are"
    visual.requires_grad_(pictures.is_trained)
    return Tower(visual, pictures, device)


class BesideTower(AdapterParameters):
    """The parameters of a decoder and of its tower, which is whole on every rank and published with
    the others, frozen or trained: not every row has pictures, and what is gathered or reduced in a
    pass must be so on all ranks."""

    def __init__(
        self,
        tower: FlatParameters | ReplicatedParameters,
        others: ReplicatedParameters | TrainedShards,
    ) -> None:
        trained: dict[str, ReplicatedParameters | TrainedShards] = {"": others}
        if isinstance(tower, ReplicatedParameters):
            trained[PREFIX] = tower
        super().__init__(tower, trained)

    def of(self, name: str) -> BesideTower:
        """All: there is no adapter."""
        return self

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        return {**self._base.shapes, **self.shapes}

    def whole(self, name: str) -> AbstractContextManager[Tensor]:
        return self._adapters[""].whole(name)

    def reduce(self, name: str) -> None:
        self._adapters[""].reduce(name)

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Collective where the decoder is sharded."""
        return chain(self._base.exported(), self._adapters[""].exported())

    def flat(self) -> None:
        """There is no buffer of all."""
