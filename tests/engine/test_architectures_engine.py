"""Architectures with windows, scaled embeddings, scaled logits, two kinds of layers and experts go
through engine and sync gate; `python -m research.benchmarks.architectures` tries all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.benchmarks.architectures import TOLERANCE_NATS, save_models, through_engine_and_gate
from tests.engine.conftest import Slot

pytestmark = [
    pytest.mark.engine,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]


@pytest.mark.parametrize("name", ["gemma3_text", "granite", "qwen3_moe", "mixtral", "glm4_moe"])
async def test_published_models_are_what_the_engine_computes_with(
    slot: Slot, tmp_path: Path, name: str
) -> None:
    slot.take()
    engine_model, *models = save_models(name, tmp_path, 3)
    differences = await through_engine_and_gate(models, engine_model, tmp_path)
    assert len(differences) == 2
    assert max(differences) <= TOLERANCE_NATS
