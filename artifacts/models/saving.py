"""Models that Rollflow makes itself, as Hugging Face directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.refused_writes import explained

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SETTING = "keep.model_cache"  # says where they are put


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path) -> None:
    """Write both into the directory. Raises StoreError where they do not fit, or may not be
    written."""
    num_bytes = sum(weights.nbytes for weights in model.parameters())
    with explained(str(target), num_bytes, SETTING):
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
