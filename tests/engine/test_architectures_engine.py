"""Architectures with windows, scaled embeddings, scaled logits and two kinds of layers go through
engine and sync gate; `python -m benchmarks.architectures` tries all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from artifacts.models.character_tokenizer import VOCABULARY_SIZE, character_tokenizer
from benchmarks.architectures import TOLERANCE_NATS, through_engine_and_gate
from benchmarks.tiny_architectures import save_tiny
from tests.engine.conftest import Slot

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings(
        "ignore:.*torch.distributed.reduce_op.*:FutureWarning"
    ),  # vLLM scans every module's attributes
]


@pytest.mark.parametrize("name", ["gemma3_text", "granite"])
async def test_a_published_model_is_what_the_engine_computes_with(
    slot: Slot, tmp_path: Path, name: str
) -> None:
    slot.take()
    for folder, seed in (("learner", 0), ("engine", 1)):
        save_tiny(name, tmp_path / folder, VOCABULARY_SIZE, torch.bfloat16, seed)
        character_tokenizer().save_pretrained(tmp_path / folder)
    difference = await through_engine_and_gate(
        tmp_path / "learner", tmp_path / "engine", tmp_path / "weights.safetensors"
    )
    assert difference <= TOLERANCE_NATS
