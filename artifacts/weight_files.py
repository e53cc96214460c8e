"""Names the files that hold the weights of a model in a Hugging Face directory: one, or several and
an index."""

from __future__ import annotations

import json
from pathlib import Path

WEIGHTS = "*.safetensors"
MODEL_WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # says which of several files holds which weights


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of the model in a directory, as transformers chooses."""
    if (path / MODEL_WEIGHTS).is_file():
        return [path / MODEL_WEIGHTS]
    return sorted(indexed_files(path) or path.glob(WEIGHTS))


def indexed_files(path: Path) -> set[Path]:
    """The files that the index of a directory names; none without an index."""
    if not (path / INDEX).is_file():
        return set()
    listed = json.loads((path / INDEX).read_text())["weight_map"]
    return {path / name for name in listed.values()}
