"""The tiny model with eyes: a small Qwen2.5-VL or Qwen3-VL, and its supervised warm-up on shapes.

    drawn question -> picture and answer (clean, then many wrong ones) -> loss on the answer
        -> Muon for the matrices, AdamW for the rest -> Hugging Face directory

In the last quarter a known share of answers is wrong, so that sampling errs while the most likely
answer is mostly right. The same configuration gives the same bytes on the same machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from artifacts.datasets.chain_sum import ANSWER
from artifacts.datasets.rows import belongs_to_heldout
from artifacts.datasets.shapes import HIGHEST, ShapesConfig, drawn
from artifacts.models.character_tokenizer import (
    SHOWING,
    VISION,
    seeing_tokenizer,
)
from artifacts.models.importing import building_model, importing_transformers
from artifacts.models.picture_processor import PROCESSOR, Patches, PictureProcessor
from artifacts.models.registry import SEEING, TinyVisionConfig, save_model
from tasks.tiny_models.warm_up import (
    CLEAN_SHARE,
    FLAWED,
    IGNORED,
    Report,
    decoder_sizes,
    lr_share_of,
    optimizers_of,
    reproducible,
    tell,
    update,
)

with importing_transformers():
    import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_PICTURES = 32
PATCH, MERGE = 14, 2
LARGEST = 28 * 28 * 64  # pixels of a picture; larger ones are made smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenExample:
    """A demonstration: a picture, a question and an answer, as token ids."""

    token_ids: tuple[int, ...]  # all of it
    num_learned: int  # of the last tokens, those that the model is to predict
    patches: Patches


def build_seeing_model(config: TinyVisionConfig, target: Path, report: Report) -> None:
    """Train the model and write it, in bf16, with tokenizer and processor into `target`."""
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 28 * 28, "longest_edge": LARGEST},
    }
    (target / PROCESSOR).write_text(json.dumps(settings, indent=2) + "\n")
    tokenizer = seeing_tokenizer()
    model = warm_up(config, tokenizer, PictureProcessor(str(target)), report)
    save_model(model.to(torch.bfloat16), tokenizer, target)


def warm_up(
    config: TinyVisionConfig,
    tokenizer: PreTrainedTokenizerBase,
    processor: PictureProcessor,
    report: Report,
) -> PreTrainedModel:
    """Build a model and train it for config.warm_up_steps, in float32. Global random state and
    thread count are restored afterwards."""
    class_name = f"{SEEING[config.architecture]}ForConditionalGeneration"
    with reproducible(config.seed):
        with building_model():
            model_class = getattr(transformers, class_name)  # here it is imported
            model: PreTrainedModel = model_class(_architecture(config, tokenizer))
        optimizers = optimizers_of(model)
        rng = random.Random(f"{config.seed}/warm_up")
        num_clean = int(CLEAN_SHARE * config.warm_up_steps)
        for step in range(config.warm_up_steps):
            if step == num_clean:
                report(f"{config.kind}: {FLAWED}")
            wrong_share = 0.0 if step < num_clean else config.wrong_share
            examples = [draw(rng, tokenizer, processor, wrong_share) for _ in range(BATCH_PICTURES)]
            loss = loss_of(model, examples)
            torch.autograd.backward(loss)
            update(model, optimizers, lr_share_of(step, config.warm_up_steps))
            tell(config, step, loss.item(), report)
    return model.eval()


def draw(
    rng: random.Random,
    tokenizer: PreTrainedTokenizerBase,
    processor: PictureProcessor,
    wrong_share: float,
) -> SeenExample:
    """Draw a demonstration of a question that is not held out."""
    task = ShapesConfig(style="terse", num_prompts=1, heldout_prompts=0)
    (row,) = task.load(rng.getrandbits(48)).rows
    assert not belongs_to_heldout("".join((row.text, *row.pictures)))
    answer = int(row.gold)
    if rng.random() < wrong_share:
        answer = rng.randrange(HIGHEST + 1)
    patches = processor.patches(drawn(row.pictures[0]))
    num_tokens = patches.grid[1] * patches.grid[2] // MERGE**2
    shown = SHOWING.replace(VISION[2], VISION[2] * num_tokens)
    asked = tokenizer.encode(f"{tokenizer.bos_token}{shown}{row.text}", add_special_tokens=False)
    said = tokenizer.encode(f"{ANSWER}{answer}{tokenizer.eos_token}", add_special_tokens=False)
    return SeenExample(token_ids=(*asked, *said), num_learned=len(said), patches=patches)


def loss_of(model: PreTrainedModel, examples: Sequence[SeenExample]) -> Tensor:
    """The mean loss per predicted token, nats."""
    longest = max(len(example.token_ids) for example in examples)
    token_ids = torch.zeros((len(examples), longest), dtype=torch.long)
    labels = torch.full_like(token_ids, IGNORED)
    for row, example in enumerate(examples):
        ids, end = torch.tensor(example.token_ids), len(example.token_ids)
        token_ids[row, :end] = ids
        labels[row, end - example.num_learned : end] = ids[-example.num_learned :]
    logits = model(
        input_ids=token_ids,
        pixel_values=torch.cat([torch.from_numpy(each.patches.values) for each in examples]),
        image_grid_thw=torch.tensor([example.patches.grid for example in examples]),
        mm_token_type_ids=(token_ids == model.config.image_token_id).int(),
        use_cache=False,
    ).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


def _architecture(
    config: TinyVisionConfig, tokenizer: PreTrainedTokenizerBase
) -> Any:  # Any: configurations of transformers
    start, end, picture, video = tokenizer.convert_tokens_to_ids(list(VISION))
    third = config.head_dim // 6  # of the angles of a head, for rows and for columns
    rotary = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [config.head_dim // 2 - 2 * third, third, third],
    }
    of_decoder: dict[str, Any] = {"rope_parameters": rotary}
    of_tower: dict[str, Any] = {}
    match config.architecture:
        case "qwen2_5_vl":
            of_tower["fullatt_block_indexes"] = list(range(config.tower_layers))
        case "qwen3_vl":
            rotary["mrope_interleaved"] = True
            of_decoder["head_dim"] = config.head_dim
            of_tower["num_position_embeddings"] = LARGEST // PATCH**2
            of_tower["deepstack_visual_indexes"] = list(range(config.tower_layers - 1))
    return transformers.AutoConfig.for_model(
        config.architecture,
        text_config={**decoder_sizes(config, tokenizer), **of_decoder},
        vision_config={
            "depth": config.tower_layers,
            "hidden_size": config.tower_size,
            "intermediate_size": 2 * config.tower_size,
            "num_heads": 2,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "out_hidden_size": config.hidden_size,
            "initializer_range": config.tower_size**-0.5,
            **of_tower,
        },
        tie_word_embeddings=True,
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=picture,
        video_token_id=video,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
