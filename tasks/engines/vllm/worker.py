"""What runs inside every vLLM worker: load a weight file, and say what the worker holds afterwards.

vLLM mixes `WeightReader` into its worker class (`worker_extension_cls`): each tensor-parallel rank
reads the file itself, no tensor crosses a process border. It then reads the weights back under the
checkpoint's names (vLLM fuses q, k, v and gate, up):

* tensors that the model keeps as they are (embeddings, norms, every tensor on a GPU) are read
  whole;
* the CPU backend repacks linear weights and drops the originals. One-hot rows through the packed
  product return single input columns exactly, so `_COLUMNS` columns per matrix are read back after
  each load, others each version. What was read is written over the file's tensor before its
  fingerprint is taken: the fingerprint is the file's exactly when those columns agree;
* with tensor parallelism a rank holds a shard, which is read in the same two ways and written over
  its place in the file's tensor. Together the ranks cover the tensor; `vllm_core` joins their
  fingerprints. Of layers other than vLLM's plain parallel ones (`_SHARDED`) it is not known which
  shard a rank holds: those are not read back, their fingerprint is the file's, and only the probes
  speak for them.

Leaves out any comparison with the learner: that is the sync gate's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from artifacts.weights import fingerprint, read_weights

_SHARDED = frozenset(
    {
        "ColumnParallelLinear",
        "MergedColumnParallelLinear",
        "QKVParallelLinear",
        "RowParallelLinear",
        "VocabParallelEmbedding",
        "ParallelLMHead",
    }
)
_COLUMNS = 8  # input columns read back per repacked matrix; costs one decode step of as many tokens


class WeightReader:
    """Methods that vLLM's worker gains; called by name through `collective_rpc`."""

    model_runner: Any  # vLLM's model runner, which its worker class provides

    def load_version(self, path: str, version: int) -> dict[str, int]:
        """Load the file into the model in place; returns the fingerprint of every tensor held now,
        by checkpoint name.

        Raises ValueError before anything is changed when the file's tensors are not the model's.
        """
        model: nn.Module = self.model_runner.get_model()
        stream = dict(read_weights(path))
        _check_names(expected=_checkpoint_names(model), found=set(stream), path=path)
        self.model_runner.reload_weights(weights_iterator=_with_tied_copies(model, stream))
        return _fingerprints_held(model, stream, version)

    def fingerprints_held(self, path: str, version: int) -> dict[str, int]:
        """The same reading without loading: how what is held now differs from a file."""
        return _fingerprints_held(self.model_runner.get_model(), dict(read_weights(path)), version)


def _check_names(expected: set[str], found: set[str], path: str) -> None:
    if expected == found:
        return
    raise ValueError(
        f"a weight file must hold exactly the model's tensors; {path} lacks"
        f" {sorted(expected - found)[:3]} and has {sorted(found - expected)[:3]} too many; write it"
        " from the model that the engine was started with"
    )


def _parameters(model: nn.Module) -> Iterator[tuple[nn.Module, Tensor, list[str]]]:
    """Every (module, parameter, checkpoint names of its parts along the output axis); a tied one
    under its first names."""
    packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    first_names: dict[int, list[str]] = {}
    for module_name, module in model.named_modules():
        stem, dot, leaf = module_name.rpartition(".")
        for kind, parameter in module.named_parameters(recurse=False):
            names = [f"{stem}{dot}{part}.{kind}" for part in packed.get(leaf, [leaf])]
            yield module, parameter, first_names.setdefault(id(parameter), names)


def _checkpoint_names(model: nn.Module) -> set[str]:
    return {name for _, _, names in _parameters(model) for name in names}


def _with_tied_copies(model: nn.Module, stream: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The file's tensors, and again under their own names those that a second module is tied to.

    The CPU backend gives a tied output head a repacked copy of its own, which vLLM does not renew
    unless it gets that name too.
    """
    name_of = {id(module): name for name, module in model.named_modules()}
    tied = [
        (f"{name_of[id(module)]}.weight", stream[first])
        for module, _, (first, *_) in _parameters(model)
        if first.endswith("embed_tokens.weight")
        and not name_of[id(module)].endswith("embed_tokens")
    ]
    return [*stream.items(), *tied]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
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


@torch.no_grad()
def _fingerprints_held(
    model: nn.Module,
    stream: Mapping[str, Tensor],
    version: int,
) -> dict[str, int]:
    prints: dict[str, int] = {}
    for module, parameter, names in _parameters(model):
        parts = [_part(module, names, place, stream[name]) for place, name in enumerate(names)]
        kept, packed = _split(parameter, parts), _columns(module, parts, version)
        for part, rows, read in zip(parts, kept, packed, strict=True):
            held = part.source if rows is None else _with_rows(part, rows)
            patched = held if read is None else _with_columns(held, part, *read)
            if part.name not in prints or patched is not held:
                prints[part.name] = fingerprint(patched)
    return prints


def _part(module: nn.Module, names: list[str], place: int, source: Tensor) -> _Part:
    """What of a tensor this rank's module holds: all, unless the module is known to be sharded."""
    rows, columns = range(source.shape[0]), range(source.shape[-1])
    if type(module).__name__ in _SHARDED:
        sizes = getattr(module, "output_partition_sizes", None)
        indices = getattr(module, "shard_indices", None)
        if indices is not None:
            rows = range(indices.org_vocab_start_index, indices.org_vocab_end_index)
        elif sizes is not None and len(sizes) == len(names):
            rows = _shard(module, len(rows), sizes[place])
        if source.ndim > 1:
            width = getattr(module, "input_size_per_partition", len(columns))
            columns = _shard(module, len(columns), width)
    return _Part(name=names[place], source=source, rows=rows, columns=columns)


def _shard(module: Any, total: int, size: int) -> range:  # Any: a vLLM layer
    """This rank's shard of an axis; where there are fewer than ranks, neighbours hold the same."""
    ranks_per_shard = max(1, module.tp_size * size // total)
    start = module.tp_rank // ranks_per_shard * size
    return range(start, start + size)


def _split(parameter: Tensor, parts: list[_Part]) -> list[Tensor] | list[None]:
    """The parts of a parameter as they lie in the engine; None when it was repacked away, or is an
    unknown shard."""
    sizes, source = [len(part.rows) for part in parts], parts[0].source
    shape = (*source.shape[1:-1], len(parts[0].columns)) if source.ndim > 1 else ()
    has_axes = parameter.ndim == source.ndim and parameter.shape[1:] == shape
    if not has_axes or parameter.shape[0] < sum(sizes):
        return [None] * len(parts)
    return list(torch.split(parameter[: sum(sizes)], sizes))


def _columns(
    module: nn.Module,
    parts: list[_Part],
    version: int,
) -> list[tuple[Tensor, Tensor] | None]:
    """For each part, (column indices among the rank's, those columns as the repacked product holds
    them); None where nothing is repacked, or the product is of another width."""
    product = getattr(module, "cpu_linear", None)
    sizes, source = [len(part.rows) for part in parts], parts[0].source
    width = len(parts[0].columns)
    is_fit = source.ndim == 2 and getattr(module, "input_size_per_partition", width) == width
    if product is None or not is_fit:
        return [None] * len(parts)
    columns = (version + torch.arange(min(_COLUMNS, width)) * max(1, width // _COLUMNS)) % width
    one_hot = torch.nn.functional.one_hot(columns, width).to(source.dtype)
    read = product(one_hot, module.weight, None).T
    if read.shape[0] < sum(sizes):
        return [None] * len(parts)
    return [(columns, rows) for rows in torch.split(read[: sum(sizes)], sizes)]


def _with_rows(part: _Part, held: Tensor) -> Tensor:
    """The file's tensor with what the rank holds of it; the file's own where they agree, a zero's
    sign aside. A whole tensor is taken as it is held."""
    if part.is_whole:
        return held
    if torch.equal(part.of(part.source).to(held), held):
        return part.source
    copy = part.source.clone()
    part.of(copy).copy_(held)
    return copy


def _with_columns(tensor: Tensor, part: _Part, columns: Tensor, read: Tensor) -> Tensor:
    """The tensor itself if its columns agree (a zero's sign aside), else a copy with those read."""
    if torch.equal(part.of(tensor)[:, columns], read):
        return tensor
    copy = tensor.clone()
    part.of(copy)[:, columns] = read.to(copy.dtype)
    return copy
