"""Pictures as vLLM takes them: patches, their content as the key of its caches, and their places.

    content ─▶ file of the run ─▶ patches, kept ─▶ mm_input(token ids, patches, contents, places)

Prompts come with one token id for each token of a picture, so that vLLM's own processor has nothing
left to do; it would need torchvision, of which there is none that fits a CPU's torch. What remains
of it says how large a picture can be.

Relied on, in vLLM 0.32: a registered class is not inspected in a process of its own; of
transformers' module with torchvision `qwen2_vl` imports `smart_resize` alone, which the module
without has as well; prefix cache and cache of the tower's output go by the hashes given here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from artifacts.models.importing import importing_transformers
from artifacts.models.picture_processor import PictureProcessor, processor_of
from artifacts.models.registry import SEEING
from artifacts.pictures import LatestMade, PictureFolder
from artifacts.records import ShownPicture
from artifacts.shown_pictures import MOST_PICTURES
from artifacts.store import Store
from tasks.engines.model_files import read_model_type, takes_pictures

KEPT_BYTES = 256 * 2**20  # of patches
_TORCHVISION = "transformers.models.qwen2_vl.image_processing_qwen2_vl"


def arguments_of(model_path: str) -> dict[str, Any]:  # Any: vLLM's EngineArgs
    """The arguments of vLLM's EngineArgs for a model that takes pictures; none for others."""
    if not takes_pictures(model_path):
        return {}
    return {
        "limit_mm_per_prompt": {"image": MOST_PICTURES, "video": 0},
        "mm_processor_cache_gb": 0,  # requests bring what is kept here
        "skip_mm_profiling": True,
        "mm_device_do_normalize": False,  # patches come normalised
    }


def register_architecture(model_path: str) -> None:
    """Make vLLM take the model's class from this process, with a processor that has nothing to
    do."""
    kind = read_model_type(model_path)
    with importing_transformers():
        if _TORCHVISION not in sys.modules:
            from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as twin

            sys.modules[_TORCHVISION] = twin
        from vllm import ModelRegistry
        from vllm.multimodal.registry import _ProcessorFactories

        found: Any = import_module(f"vllm.model_executor.models.{kind}")  # Any: not typed here

    most_tokens = processor_of(model_path).most_tokens
    stem = SEEING[kind]
    info_class, processor_class = (
        getattr(found, f"{stem}{part}") for part in ("ProcessingInfo", "MultiModalProcessor")
    )

    class Info(info_class):  # type: ignore[misc, valid-type]  # as above
        """What is known of pictures before any is there."""

        def get_mm_max_tokens_per_item(
            self,
            seq_len: int,
            mm_counts: Any,  # Any: numbers by kind
        ) -> dict[str, int]:
            return {"image": most_tokens}

    class Processor(processor_class):  # type: ignore[misc, valid-type]  # as above
        """A processor of prompts that need none."""

        requires_tokenizer = False

    architecture = getattr(found, f"{stem}ForConditionalGeneration")
    architecture._processor_factory = _ProcessorFactories(
        info=Info, dummy_inputs=getattr(found, f"{stem}DummyInputsBuilder"), processor=Processor
    )
    ModelRegistry.register_model(architecture.__name__, architecture)


class PictureInputs:
    """Makes vLLM's input of prompts with pictures. All calls come from one thread."""

    def __init__(self, model_path: str, pictures: str, dtype: Any) -> None:  # Any: torch's dtype
        """pictures: folder or URL. dtype: in which the engine computes."""
        self._folder = PictureFolder(Store.open(pictures))
        self._processor: PictureProcessor = processor_of(model_path)
        self._dtype = dtype
        self._items = LatestMade(self._made, _num_bytes_of, KEPT_BYTES)

    def prompt(self, tokens: list[int], pictures: Sequence[ShownPicture], salt: str | None) -> Any:
        """vLLM's input of these token ids, as `tokens_input` makes it of text."""  # Any: untyped
        from vllm.inputs.engine import mm_input
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        items = [self._items.of(picture.content) for picture in pictures]
        places = [
            PlaceholderRange(offset=picture.begin, length=picture.num_tokens)
            for picture in pictures
        ]
        return mm_input(
            tokens,
            MultiModalKwargsItems({"image": items}),
            {"image": [picture.content for picture in pictures]},
            {"image": places},
            cache_salt=salt,
        )

    def _made(self, content: str) -> Any:  # Any: vLLM's item of one picture
        import torch

        with importing_transformers():
            from transformers import BatchFeature
            from vllm.model_executor.models.qwen2_vl import _create_qwen2vl_field_factory
            from vllm.multimodal.inputs import MultiModalKwargsItems

        patches = self._processor.patches(self._folder.read(content))
        given = BatchFeature(
            {
                "pixel_values": torch.from_numpy(patches.values).to(self._dtype),
                "image_grid_thw": torch.tensor([patches.grid]),
            }
        )
        fields = _create_qwen2vl_field_factory(self._processor.merge)(given)
        (item,) = MultiModalKwargsItems.from_hf_inputs(given, fields)["image"]
        return item


def _num_bytes_of(item: Any) -> int:  # Any: as above
    return sum(element.data.nbytes for element in item.values())
