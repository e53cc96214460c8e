"""The vision tower of a policy: pictures to the embeddings of their tokens.

    content of a picture ─▶ patches ─▶ tower ─▶ (tokens, hidden)

Each distinct picture of a row is computed once, whatever number of responses follow it. A frozen
tower computes a picture once in a run, and keeps its embeddings up to a bound of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from artifacts.models.picture_processor import Patches
from artifacts.pictures import LatestMade
from tasks.learner.adapters import AdapterParameters
from tasks.learner.pictures import NumberedPicture

KEPT_BYTES = 256 * 2**20  # of embeddings that a frozen tower has computed
PREFIX = "model.visual."  # of the names of a tower's parameters


def is_of_tower(name: str) -> bool:
    """True for the name of a parameter of the vision tower."""
    return name.startswith(PREFIX)


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
        """The embeddings of the pictures' tokens, (all their tokens, hidden); with a graph behind
        them if the tower is trained and gradients are on."""
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
        found: Tensor = output.pooler_output
        return found


def tower_of(model: Any, pictures: Pictures | None, device: torch.device) -> Tower | None:
    """The tower of a transformers model, frozen if it is not to be trained; None for a model of
    text alone."""
    visual = getattr(model.base_model, "visual", None)
    if visual is None:
        return None
    assert pictures is not None, "a model with a tower is told where pictures are"
    visual.requires_grad_(pictures.is_trained)
    return Tower(visual, pictures, device)


class FrozenTower(AdapterParameters):
    """The parameters of a decoder whose tower stays as it is, and is published with the others."""

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        return {**self._base.shapes, **self.shapes}

    def whole(self, name: str) -> AbstractContextManager[Tensor]:
        return self._adapters[""].whole(name)

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        return chain(self._base.exported(), super().exported())

    def flat(self) -> None:
        """There is no buffer of all."""
