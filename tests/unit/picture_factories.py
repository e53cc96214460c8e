"""A small model that takes pictures, and pictures for it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from turn_factories import VOCABULARY

from artifacts.models.character_tokenizer import VISION, VOCABULARY_SIZE, seeing_tokenizer
from artifacts.models.picture_processor import PROCESSOR, Patches
from artifacts.records import ShownPicture

PATCH, MERGE = 14, 2
START, END, PICTURE, VIDEO = (VOCABULARY + place for place in range(4))


def make_seeing_model(
    path: Path, tied: bool = True, seed: int = 0, kind: str = "qwen2_5_vl"
) -> str:
    """A Qwen2.5-VL of two layers and a tower of two, one of them with windows, fp32; or a Qwen3-VL,
    whose tower adds to the states behind both layers of its decoder."""
    torch.manual_seed(seed)
    made = {"qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl}[kind](tied)
    made.save_pretrained(path)
    (path / PROCESSOR).write_text(
        json.dumps(
            {
                "image_processor_type": "Qwen2VLImageProcessor",
                "patch_size": PATCH,
                "merge_size": MERGE,
                "temporal_patch_size": 2,
                "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 64},
            }
        )
    )
    return str(path)


def qwen3_vl(tied: bool) -> Qwen3VLForConditionalGeneration:
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": VOCABULARY + 4, "hidden_size": 64, "intermediate_size": 96,
            "head_dim": 32,
            "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
            "max_position_embeddings": 512, "initializer_range": 0.2,
            "bos_token_id": None, "eos_token_id": 0,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
            "patch_size": PATCH, "spatial_merge_size": MERGE, "out_hidden_size": 64,
            "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1],
            "initializer_range": 0.2,
        },
        tie_word_embeddings=tied,
        vision_start_token_id=START, vision_end_token_id=END,
        image_token_id=PICTURE, video_token_id=VIDEO,
    )  # fmt: skip
    return Qwen3VLForConditionalGeneration(config)


def qwen2_5_vl(tied: bool) -> Qwen2_5_VLForConditionalGeneration:
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": VOCABULARY + 4, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "max_position_embeddings": 512, "initializer_range": 0.2,
            "bos_token_id": None, "eos_token_id": 0,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6],
            },
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
            "patch_size": PATCH, "spatial_merge_size": MERGE, "out_hidden_size": 64,
            "fullatt_block_indexes": [1], "window_size": 56, "initializer_range": 0.2,
        },
        tie_word_embeddings=tied,
        vision_start_token_id=START, vision_end_token_id=END,
        image_token_id=PICTURE, video_token_id=VIDEO,
    )  # fmt: skip
    return Qwen2_5_VLForConditionalGeneration(config)


def make_seeing_prompts(path: Path) -> str:
    """What prompts with pictures need of a model: its settings, without weights."""
    tokenizer = seeing_tokenizer()
    tokenizer.save_pretrained(path)
    config = {
        "model_type": "qwen2_5_vl",
        "vision_config": {},
        "text_config": {"vocab_size": VOCABULARY_SIZE},
        "image_token_id": tokenizer.convert_tokens_to_ids(VISION[2]),
    }
    (path / "config.json").write_text(json.dumps(config))
    size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16}
    (path / PROCESSOR).write_text(json.dumps({"patch_size": 14, "merge_size": 2, "size": size}))
    return str(path)


def random_patches(content: str) -> Patches:
    """Patches of a picture whose name, "3x2 ...", says its rows and columns of tokens."""
    rows, columns = (MERGE * int(part) for part in content.partition(" ")[0].split("x"))
    noise = np.random.default_rng(list(content.encode()))
    values = noise.standard_normal((rows * columns, 3 * 2 * PATCH * PATCH), dtype=np.float32)
    return Patches(values=values, grid=(1, rows, columns))


def draw_prompt(
    rng: random.Random, contents: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[ShownPicture, ...]]:
    """Token ids of a prompt with these pictures, text before, between and behind them."""
    ids: list[int] = []
    pictures: list[ShownPicture] = []
    for content in contents:
        ids += [*(rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 2))), START]
        rows, columns = map(int, content.partition(" ")[0].split("x"))
        pictures.append(ShownPicture(content=content, begin=len(ids), rows=rows, columns=columns))
        ids += [PICTURE] * (rows * columns) + [END]
    ids += [rng.randrange(VOCABULARY) for _ in range(3)]
    return tuple(ids), tuple(pictures)
