"""What a model sees of a picture: resized, and cut into patches.

A model's own `preprocessor_config.json` says how, and transformers' processor does it, the one that
needs no torchvision. Both are imported and read when the first picture is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from artifacts.models.importing import importing_transformers
from artifacts.pictures import opened

PROCESSOR = "preprocessor_config.json"  # of a model that takes pictures


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patches:
    """A picture as a vision tower takes it."""

    values: NDArray[np.float32]  # (patches, numbers of a patch)
    grid: tuple[int, int, int]  # patches by time (1), from top to bottom, from left to right


class PictureProcessor:
    """The processor of a model that takes pictures."""

    def __init__(self, model_path: str) -> None:
        """Raises ValueError for a model without a processor of pictures."""
        file = Path(model_path) / PROCESSOR
        if not file.is_file():
            raise ValueError(
                f"a model that takes pictures must have a {PROCESSOR}, {model_path} has none; copy"
                " it beside the weights"
            )
        self._settings: Mapping[str, Any] = json.loads(file.read_text())  # Any: JSON values

    @cached_property
    def of_transformers(self) -> Any:  # Any: transformers carries no types
        """Transformers' own processor."""
        with importing_transformers():
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
                Qwen2VLImageProcessorPil,
            )

        return Qwen2VLImageProcessorPil.from_dict(dict(self._settings))

    @property
    def merge(self) -> int:
        """Patches beside each other, and below each other, that become one token."""
        return int(self.of_transformers.merge_size)

    @property
    def most_tokens(self) -> int:
        """The most tokens that stand for a picture, of whatever size."""
        unit = self.of_transformers.patch_size * self.merge
        return int(self.of_transformers.size["longest_edge"] // unit**2)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """(rows, columns) of the tokens of a picture of this size."""
        with importing_transformers():
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        unit, size = self.of_transformers.patch_size * self.merge, self.of_transformers.size
        rows, columns = smart_resize(
            height, width, unit, size["shortest_edge"], size["longest_edge"]
        )
        return rows // unit, columns // unit

    def patches(self, data: bytes) -> Patches:
        """Resize a picture and cut it into patches."""
        made = self.of_transformers(images=opened(data), return_tensors="np")
        (grid,) = made["image_grid_thw"].tolist()
        return Patches(
            values=np.ascontiguousarray(made["pixel_values"], np.float32), grid=tuple(grid)
        )


@lru_cache(maxsize=4)
def processor_of(model_path: str) -> PictureProcessor:
    """The model's processor, read once per process."""
    return PictureProcessor(model_path)
