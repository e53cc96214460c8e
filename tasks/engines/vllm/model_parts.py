"""Where the tensors of a checkpoint lie in a vLLM model, and how a later version is written there.

vLLM fuses q, k, v and gate, up and renames experts, and a rank of tensor parallelism holds a shard
of most tensors. `worker` reads weights back by this map (`parameters_of`, `parts_of`), and once it
is proven on the model writes them by it (`load_parameter`): one copy or one repacking of each
tensor, where vLLM's own reload plans every parameter again and copies the whole layer once more.

All experts of a layer are two parameters of one module (`RoutedExperts`), which vLLM's CPU backend
packs in place, in 0.32 only when it builds the kernel: after an update of the weights the kernel
would read unpacked ones as packed. So `forget_kernels` removes the kernel, and the module packs at
its next load. Packed weights cannot be unpacked: the rank's share of the file's is packed as well
and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NAMES = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}  # in vLLM, and in a checkpoint
RENAMED = {"block_sparse_moe": "mlp"}  # parts of module names, likewise
# parameters that no version has: buffers in transformers, which vLLM's reload spares, and what
# latent attention computes from kv_b_proj
OF_NO_VERSION = frozenset({"e_score_correction_bias", "W_UV", "W_UK_T"})


def are_experts(module: nn.Module) -> bool:
    return type(module).__name__ == "RoutedExperts"


def forget_kernels(model: nn.Module) -> None:
    """Have the next load pack the experts again. GPUs are left alone: nothing is packed on the host
    there, and CUDA graphs may have captured the kernel."""
    for module in model.modules():
        if are_experts(module) and next(module.parameters()).device.type == "cpu":
            _method_of(module).moe_kernel = None


def experts_held(module: Any, of_file: Mapping[str, Tensor]) -> dict[str, Tensor]:  # Any: vLLM's
    """Tensors by the names of the module's parameters. A tensor is the file's where the module
    holds exactly what loading the file would give this rank; else it is the module's own, flattened
    so that it equals no tensor of a file."""
    held, shares = {name: getattr(module, name) for name in NAMES}, _shares(module, of_file)
    num, hidden = module.global_num_experts, module.hidden_size
    width = module.moe_config.intermediate_size_per_partition
    needed = {"w13_weight": (num, 2 * width, hidden), "w2_weight": (num, hidden, width)}
    if any(shares[name].shape != shape for name, shape in needed.items()):  # padded, unknown how
        return dict(of_file)
    wanted = _packed(module, {name: shares[name].to(held[name]) for name in held})
    return {
        name: of_file[name] if torch.equal(held[name], wanted[name]) else held[name].flatten()
        for name in held
    }


def _shares(module: Any, of_file: Mapping[str, Tensor]) -> dict[str, Tensor]:  # Any: as above
    """What this rank of tensor parallelism loads of every expert: some columns between its two
    products, which are rows of gate and up projection, one after the other in the file."""
    ranks, gate_up = module.moe_config.moe_parallel_config, of_file["w13_weight"]
    num, rows, hidden = gate_up.shape
    halves = gate_up.view(num, 2, rows // 2, hidden)
    return {
        "w13_weight": halves.chunk(ranks.tp_size, 2)[ranks.tp_rank].flatten(1, 2),
        "w2_weight": of_file["w2_weight"].chunk(ranks.tp_size, 2)[ranks.tp_rank],
    }


def _packed(module: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The parameters that the module, which is not changed, would hold after loading these."""
    stand_in = copy(module)
    stand_in._parameters = {
        name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()
    }
    copy(_method_of(module).moe_kernel.fused_experts).process_weights_after_loading(stand_in)
    return dict(stand_in.named_parameters(recurse=False))


def _method_of(module: Any) -> Any:  # Any: a vLLM layer, and what it computes by
    return module.quant_method


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
    """A tensor of the file, and the region of it that lies in a parameter of this rank."""

    name: str  # in the checkpoint
    source: Tensor  # as the file has it
    rows: range  # of the region, along the first axis
    columns: range  # of the region, along the last axis; all of a vector

    @property
    def is_whole(self) -> bool:
        return len(self.rows) == self.source.shape[0] and len(self.columns) == self.source.shape[-1]

    def of(self, tensor: Tensor) -> Tensor:
        """The same region of a tensor of the source's shape, as a view."""
        rows = tensor[self.rows.start : self.rows.stop]
        return rows if rows.ndim == 1 else rows[..., self.columns.start : self.columns.stop]


def parameters_of(model: nn.Module) -> Iterator[tuple[nn.Module, Tensor, list[str]]]:
    """Yield (module, parameter, checkpoint names of its parts along the output axis) for every
    parameter that versions have. A tied parameter always has the names under which it was met
    first."""
    packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    first_names: dict[int, list[str]] = {}
    for module_name, module in modules_of(model):
        stem, dot, leaf = module_name.rpartition(".")
        for kind, parameter in module.named_parameters(recurse=False):
            if kind in OF_NO_VERSION:
                continue
            if are_experts(module):
                names = [f"{stem}{dot}{NAMES.get(kind, kind)}"]
            else:
                names = [f"{stem}{dot}{part}.{kind}" for part in packed.get(leaf, [leaf])]
            yield module, parameter, first_names.setdefault(id(parameter), names)


def modules_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules of the model with the names that they have in a checkpoint."""
    for own_name, module in model.named_modules():
        yield in_checkpoint(model, own_name), module


def in_checkpoint(model: nn.Module, name: str) -> str:
    """The name in a checkpoint of a module of vLLM: another one in a model with a tower, and in
    Mixtral."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is None or not hasattr(model, "visual"):
        return ".".join(RENAMED.get(part, part) for part in name.split("."))
    for of_checkpoint, own in mapper.orig_to_new_prefix.items():  # the newest names come first
        if f"{name}.".startswith(own):
            return f"{of_checkpoint}{f'{name}.'.removeprefix(own)}".removesuffix(".")
    return name


def checkpoint_names(model: nn.Module) -> set[str]:
    """The names of all tensors that a weight file of this model has."""
    return {name for _, _, names in parameters_of(model) for name in names}


def parts_of(module: nn.Module, names: list[str], stream: Mapping[str, Tensor]) -> list[TensorPart]:
    """The parts of the file's tensors that make up a parameter of the module, in order."""
    return [_part(module, names, place, stream[name]) for place, name in enumerate(names)]


def _part(module: nn.Module, names: list[str], place: int, source: Tensor) -> TensorPart:
    """The region of a tensor in this rank's module: all, unless the module is sharded."""
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
    """This rank's shard of an axis; neighbours hold the same one where there are fewer."""
    ranks_per_shard = max(1, module.tp_size * size // total)
    start = module.tp_rank // ranks_per_shard * size
    return range(start, start + size)


def kept_parts(parameter: Tensor, parts: list[TensorPart]) -> list[Tensor] | list[None]:
    """The parts of a parameter as they lie in the engine; None for each when the parameter was
    repacked away, or is a shard of unknown layout."""
    sizes, source = [len(part.rows) for part in parts], parts[0].source
    shape = (*source.shape[1:-1], len(parts[0].columns)) if source.ndim > 1 else ()
    has_axes = parameter.ndim == source.ndim and parameter.shape[1:] == shape
    if not has_axes or parameter.shape[0] < sum(sizes):
        return [None] * len(parts)
    return list(torch.split(parameter[: sum(sizes)], sizes))


_PLAIN_METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
_PLAIN_ATTENTION = "Attention"  # derives nothing from weights


def is_plain(model: nn.Module) -> bool:
    """True if every layer holds the checkpoint's weights, at most repacked by matrix."""
    layers = (
        module
        for module in model.modules()
        if are_experts(module) or not hasattr(module, "load_weights")  # else made of layers
    )
    return all(map(_is_plain_layer, layers)) and not hasattr(model, "process_weights_after_loading")


def _is_plain_layer(module: nn.Module) -> bool:
    method = getattr(module, "quant_method", None)
    if method is not None:
        return type(module).__name__ in SHARDED and type(method).__name__ in _PLAIN_METHODS
    derives = hasattr(module, "process_weights_after_loading")
    return not derives or type(module).__name__ == _PLAIN_ATTENTION


@torch.no_grad()
def load_parameter(
    module: Any, parameter: Tensor, parts: Sequence[TensorPart], *, is_tied: bool
) -> None:
    """Write the parts into one parameter of a plain layer. module: a vLLM layer, which has no
    useful type. is_tied: whether another module has loaded the parameter already."""
    kept = kept_parts(parameter, list(parts))
    if not is_tied:
        for part, rows in zip(parts, kept, strict=True):
            if rows is not None:
                rows.copy_(part.of(part.source))
    if getattr(module, "cpu_linear", None) is not None and parts[0].source.ndim == 2:
        _repack(module, parameter, parts, is_kept=kept[0] is not None)


def _repack(module: Any, parameter: Tensor, parts: Sequence[TensorPart], *, is_kept: bool) -> None:
    """Have the layer pack its weight again, as it did when it was built. Its parameter remains the
    same object, empty unless the layer keeps it."""
    if not is_kept:
        whole = torch.cat([part.of(part.source) for part in parts]).to(parameter.dtype)
        module.weight = nn.Parameter(whole, requires_grad=False)
    module.quant_method.process_weights_after_loading(module)
    module.weight = parameter
