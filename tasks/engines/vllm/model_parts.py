"""Where the tensors of a checkpoint lie in a vLLM model: vLLM fuses q, k, v and gate, up, calls
experts by other names, and a rank of tensor parallelism holds a shard of most.

Leaves out reading and writing: `worker` reads by this map, `direct_load` writes by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tasks.engines.vllm.experts import NAMES, are_experts

SHARDED = frozenset(
    {
        "ColumnParallelLinear",
        "MergedColumnParallelLinear",
        "QKVParallelLinear",
        "RowParallelLinear",
        "VocabParallelEmbedding",
        "ParallelLMHead",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """A tensor of the file, and which of it lies in a parameter of this rank."""

    name: str  # in the checkpoint
    source: Tensor  # as the file has it
    rows: range  # along its first axis
    columns: range  # along its last axis; all of a vector's

    @property
    def is_whole(self) -> bool:
        return len(self.rows) == self.source.shape[0] and len(self.columns) == self.source.shape[-1]

    def of(self, tensor: Tensor) -> Tensor:
        """The same region of a tensor of the source's shape, as a view."""
        rows = tensor[self.rows.start : self.rows.stop]
        return rows if rows.ndim == 1 else rows[..., self.columns.start : self.columns.stop]


def parameters_of(model: nn.Module) -> Iterator[tuple[nn.Module, Tensor, list[str]]]:
    """Every (module, parameter, checkpoint names of its parts along the output axis); a tied one
    under its first names."""
    packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    first_names: dict[int, list[str]] = {}
    for module_name, module in model.named_modules():
        stem, dot, leaf = module_name.rpartition(".")
        for kind, parameter in module.named_parameters(recurse=False):
            if are_experts(module):
                names = [f"{stem}{dot}{NAMES.get(kind, kind)}"]
            else:
                names = [f"{stem}{dot}{part}.{kind}" for part in packed.get(leaf, [leaf])]
            yield module, parameter, first_names.setdefault(id(parameter), names)


def checkpoint_names(model: nn.Module) -> set[str]:
    """The tensors that a version of this model has."""
    return {name for _, _, names in parameters_of(model) for name in names}


def parts_of(module: nn.Module, names: list[str], stream: Mapping[str, Tensor]) -> list[TensorPart]:
    """What a parameter of the module is made of, in its order."""
    return [_part(module, names, place, stream[name]) for place, name in enumerate(names)]


def _part(module: nn.Module, names: list[str], place: int, source: Tensor) -> TensorPart:
    """What of a tensor this rank's module holds: all, unless the module is known to be sharded."""
    rows, columns = range(source.shape[0]), range(source.shape[-1])
    if type(module).__name__ in SHARDED:
        sizes = getattr(module, "output_partition_sizes", None)
        indices = getattr(module, "shard_indices", None)
        if indices is not None:
            rows = range(indices.org_vocab_start_index, indices.org_vocab_end_index)
        elif sizes is not None and len(sizes) == len(names):
            rows = _shard(module, len(rows), sizes[place])
        if source.ndim > 1:
            width = getattr(module, "input_size_per_partition", len(columns))
            columns = _shard(module, len(columns), width)
    return TensorPart(name=names[place], source=source, rows=rows, columns=columns)


def _shard(module: Any, total: int, size: int) -> range:  # Any: a vLLM layer
    """This rank's shard of an axis; where there are fewer than ranks, neighbours hold the same."""
    ranks_per_shard = max(1, module.tp_size * size // total)
    start = module.tp_rank // ranks_per_shard * size
    return range(start, start + size)


def kept_parts(parameter: Tensor, parts: list[TensorPart]) -> list[Tensor] | list[None]:
    """The parts of a parameter as they lie in the engine; None when it was repacked away, or is an
    unknown shard."""
    sizes, source = [len(part.rows) for part in parts], parts[0].source
    shape = (*source.shape[1:-1], len(parts[0].columns)) if source.ndim > 1 else ()
    has_axes = parameter.ndim == source.ndim and parameter.shape[1:] == shape
    if not has_axes or parameter.shape[0] < sum(sizes):
        return [None] * len(parts)
    return list(torch.split(parameter[: sum(sizes)], sizes))
