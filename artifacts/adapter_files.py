"""Adapters as files: PEFT's format, which vLLM reads too, and weights with an adapter added.

    adapter, the model's files ── merged_weights ──▶ one file of whole weights, tensor by tensor

adapter_config.json         rank, alpha, targets, the name of the base model
adapter_model.safetensors   base_model.model.<module>.lora_A.weight (rank, in), lora_B (out, rank)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.store import explained

if TYPE_CHECKING:  # settings are checked without torch
    from torch import Tensor

A, B = ".lora_A.weight", ".lora_B.weight"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
DECODER, TOWER = "model.language_model.", r".*\bvisual\b.*"  # names in a model that sees


def named(adapter: str, tensor: str) -> str:
    """The name of a tensor of one of several adapters, as they are published together."""
    return f"{adapter}/{tensor}" if adapter else tensor


def part_of(tensors: Mapping[str, Tensor], adapter: str) -> dict[str, Tensor]:
    """The tensors of one of several adapters, by the names that they would have alone."""
    if not adapter:
        return dict(tensors)
    before = named(adapter, "")
    return {
        name.removeprefix(before): tensor
        for name, tensor in tensors.items()
        if name.startswith(before)
    }


def stem_of(name: str) -> str:
    """The name of the module that a matrix of an adapter belongs to."""
    return name.removesuffix(A).removesuffix(B)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAdapter:
    """An adapter that was read from its directory."""

    tensors: Mapping[str, Tensor]  # by name, without PEFT's prefix
    scale: float  # the factor of B A


def read_adapter(directory: str) -> SavedAdapter:
    """Read an adapter in PEFT's format. Raises ValueError for a directory that holds none, or one
    with more than two plain matrices for each module."""
    from safetensors.torch import load_file

    folder = Path(directory).expanduser()
    try:
        config = json.loads((folder / CONFIG).read_text())
        stored = load_file(folder / WEIGHTS)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"an adapter must be a directory with {CONFIG} and {WEIGHTS}, {directory} is not"
            f" ({error}); give the one that PEFT or a run has written"
        ) from error
    more = [key for key in ("use_dora", "rank_pattern", "alpha_pattern") if config.get(key)]
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in stored.items()}
    more += sorted(name for name in tensors if not name.endswith((A, B)))[:1]
    if more:
        raise ValueError(
            f"an adapter must be plain matrices A and B of one rank, {directory} has {more[0]};"
            " merge it into its model, and begin with that"
        )
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return SavedAdapter(tensors=tensors, scale=scale)


def write_adapter(
    directory: Path,
    tensors: Mapping[str, Tensor],
    *,
    scale: float,
    base_model: str,
) -> None:
    """Write an adapter in PEFT's format. tensors: by name, without PEFT's prefix. base_model: what
    PEFT loads beneath it, a name or a path. Raises StoreError."""
    from safetensors.torch import save_file

    rank = next(tensor.shape[0] for name, tensor in tensors.items() if name.endswith(A))
    config: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".")[-3] for name in tensors}),
        "inference_mode": True,
    }
    if any(name.startswith(DECODER) for name in tensors):  # layers of the tower have equal names
        config["exclude_modules"] = TOWER
    with explained(str(directory), sum(tensor.nbytes for tensor in tensors.values())):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        stored = {_PREFIX + name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(stored, directory / WEIGHTS, {"format": "pt"})


def merged(name: str, weight: Tensor, adapter: Mapping[str, Tensor], scale: float) -> Tensor:
    """The weight of this name with its part of the adapter added, in the weight's dtype; itself if
    the adapter has none. Computed in fp32, rounded once."""
    import torch

    stem = name.removesuffix(".weight")
    first, second = adapter.get(stem + A), adapter.get(stem + B)
    if first is None or second is None:
        return weight
    product = second.to(weight.device).float() @ first.to(weight.device).float()
    return torch.add(weight.float(), product, alpha=scale).to(weight.dtype)


def merged_weights(
    base: Iterable[tuple[str, Tensor]], adapter: Mapping[str, Tensor], scale: float
) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors with the adapter added."""
    for name, tensor in base:
        yield name, merged(name, tensor, adapter, scale)


def write_merged(
    files: Sequence[Path],
    adapter: Mapping[str, Tensor],
    scale: float,
    aliases: Mapping[str, str],
    path: Path,
    name_in_model: Callable[[str], str] = str,
) -> None:
    """Write the weights of a model's files with the adapter added: rounded to bf16, as
    engines hold them, added, and rounded again. aliases: further names of tied weights, which are
    stored once, each with the first name. name_in_model: of a stored tensor. Raises ValueError for
    an adapter of other modules, StoreError."""
    import torch

    from artifacts.weights import read_weights, stored_shapes, stream_weights

    stored = {
        name_in_model(name): shape for file in files for name, shape in stored_shapes(file).items()
    }
    shapes = {name: shape for name, shape in stored.items() if aliases.get(name) not in stored}
    strange = sorted(stem for stem in map(stem_of, adapter) if f"{stem}.weight" not in shapes)
    if strange:
        raise ValueError(
            f"an adapter must change weights of its model, {files[0].parent} has no"
            f" {strange[0]}.weight; save the model by save_pretrained, and begin with that"
        )
    base = (
        (name, tensor.to(torch.bfloat16))
        for file in files
        for name, tensor in ((name_in_model(old), each) for old, each in read_weights(file))
        if name in shapes
    )
    merged = merged_weights(base, adapter, scale)
    stream_weights(merged, shapes, path, 0, setting="artifact_root")
