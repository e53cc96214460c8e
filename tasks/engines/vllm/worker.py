"""The code inside every vLLM worker: load a weight version from its file or from the learner
(`tasks.engines.transports`), then fingerprint the tensors that the worker holds.

    stream ─▶ vLLM's own reload, of all at once (the first) ─▶ read back ─▶ fingerprints, by name
           └▶ direct load, bucket by bucket (later versions) ─▶ read back ─┘

vLLM mixes `WeightReader` into its worker class (`worker_extension_cls`): each tensor-parallel rank
takes the version itself. "The file" below is whatever the tensors come from. What it then reads
back of its weights (`model_parts` knows what lies where) is written over the file's tensor, whose
fingerprint is the file's exactly when both agree:

* tensors that the model keeps as they are (every tensor on a GPU) are read whole;
* the CPU backend repacks linear weights and drops the originals. One-hot rows through the packed
  product return single input columns exactly: `_COLUMNS` per matrix are read, others each version;
* a rank of tensor parallelism reads its shard; `core` joins the ranks' fingerprints. Of layers
  other than vLLM's plain parallel ones (`SHARDED`) and experts the fingerprint is the file's, and
  only the probes speak for them: which shard a rank holds is not known.

When a version that vLLM loaded by its own rules reads back equal to the file, the map of where
every tensor lies is proven, and later versions are loaded directly by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from artifacts.records import WeightsRef
from artifacts.weights import fingerprint, read_weights
from tasks.engines.base import AdapterShape
from tasks.engines.transports.base import TransportKind, WeightStream, WeightTransport
from tasks.engines.transports.registry import opened
from tasks.engines.vllm.adapter_slot import load_adapters
from tasks.engines.vllm.model_parts import (
    NAMES,
    RENAMED,
    TensorPart,
    are_experts,
    checkpoint_names,
    experts_held,
    forget_kernels,
    is_plain,
    kept_parts,
    load_parameter,
    modules_of,
    parameters_of,
    parts_of,
)

_COLUMNS = 8  # input columns read back per repacked matrix; costs one decode step of as many tokens


class WeightReader:
    """Methods added to vLLM's worker class; called by name through `collective_rpc`."""

    model_runner: Any  # these three are of vLLM's worker class
    reload_weights: Any
    rank: int  # of tensor parallelism
    # the engines' side of transports that have been used
    _transports: dict[TransportKind, WeightTransport] | None = None
    # shape of every tensor, once a version that vLLM loaded has proven where tensors lie
    _proven_shapes: Mapping[str, torch.Size] | None = None

    def load_version(
        self, weights: WeightsRef, engine: str, adapter: AdapterShape | None = None
    ) -> dict[str, int]:
        """Load a version into the model in place; returns the fingerprint of every tensor that the
        model now holds, by checkpoint name. engine: this worker's engine. adapter: what the version
        is, if not the model's weights. Raises ValueError, before anything is changed, when the
        version's tensors are not the model's, and TransferLost."""
        model: nn.Module = self.model_runner.get_model()
        self._transports = self._transports or {}
        before, is_direct = addresses(model), self._proven_shapes is not None
        device, member = next(model.parameters()).device, f"{engine}/{self.rank}"
        with opened(weights, device, member, self._transports) as stream:
            if adapter is not None:
                return load_adapters(self.model_runner, _whole(stream), adapter, weights.path)
            _check_tensors(model, self._proven_shapes or {}, stream.shapes, weights.path)
            if self._proven_shapes is None:
                prints = self._load_by_vllm(model, _whole(stream), weights.version)
            else:
                prints = {}
                for bucket in stream.buckets:
                    prints |= _fingerprints_held(model, bucket, weights.version, load_first=True)
        if is_direct or device.type == "cuda":
            check_in_place(before, addresses(model))
        return prints

    def _load_by_vllm(
        self, model: nn.Module, stream: Mapping[str, Tensor], version: int
    ) -> dict[str, int]:
        """Load all tensors by vLLM's own rules, and try to prove the map of where they lie."""
        forget_kernels(model)
        self.reload_weights(weights_iterator=list(loadable(model, stream)))
        prints = _fingerprints_held(model, stream, version)
        if is_plain(model) and _is_map_proven(model, stream, prints):
            self._proven_shapes = {name: tensor.shape for name, tensor in stream.items()}
        return prints

    def fingerprints_held(self, path: str, version: int) -> dict[str, int]:
        """Fingerprint the tensors that the model holds, without loading: they equal the file's
        where the model agrees with the file."""
        return _fingerprints_held(self.model_runner.get_model(), dict(read_weights(path)), version)


def addresses(model: nn.Module) -> dict[str, int]:
    """Where each parameter's memory begins."""
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters()}


def check_in_place(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Raises RuntimeError if a parameter has moved: CUDA graphs go on reading the old memory."""
    moved = [name for name, address in before.items() if after.get(name) != address]
    if moved:
        raise RuntimeError(
            f"weights must be loaded in place, or CUDA graphs compute with old ones; {moved[0]} and"
            f" {len(moved) - 1} others have moved; set engine.enforce_eager=true"
        )


def _whole(stream: WeightStream) -> Mapping[str, Tensor]:
    """All tensors at once; those that come in several buckets wait in host memory."""
    tensors: dict[str, Tensor] = {}
    for bucket in stream.buckets:
        if len(bucket) == len(stream.shapes):
            return bucket
        tensors |= {name: tensor.to("cpu", copy=True) for name, tensor in bucket.items()}
    return tensors


def _check_tensors(
    model: nn.Module,
    shapes: Mapping[str, torch.Size],
    stream: Mapping[str, torch.Size],
    path: str,
) -> None:
    """Raises ValueError unless the file has the model's tensors, in these shapes if any."""
    expected, found = checkpoint_names(model), set(stream)
    if expected != found:
        raise ValueError(
            f"a weight file must hold exactly the model's tensors; {path} lacks"
            f" {sorted(expected - found)[:3]} and has {sorted(found - expected)[:3]} too many;"
            " write it from the model that the engine was started with"
        )
    for name, needed in shapes.items():
        if stream[name] != needed:
            raise ValueError(
                f"a weight file must hold tensors of the model's shapes; {name} is"
                f" {tuple(stream[name])} in {path} and {tuple(needed)} in the model; write it"
                " from the model that the engine was started with"
            )


def loadable(model: nn.Module, stream: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors under names that vLLM's loaders know, experts one by one; and again, under
    the name of a second module, what that one is tied to: the CPU backend gives a tied output head
    a repacked copy, which vLLM renews only by that name."""
    own_names = {id(module): name for name, module in model.named_modules()}
    own_parts = {
        RENAMED[part]: part
        for name in own_names.values()
        for part in name.split(".")
        if part in RENAMED
    }
    experts = {
        f"{name.rpartition('.')[0]}.{kind}": module
        for name, module in modules_of(model)
        if are_experts(module)
        for kind in NAMES.values()
    }
    for name, tensor in stream.items():
        own = ".".join(own_parts.get(part, part) for part in name.split("."))
        yield from _by_expert(experts[name], own, tensor) if name in experts else [(own, tensor)]
    for module, _, (first, *_) in parameters_of(model):
        own = own_names[id(module)]
        if first.endswith("embed_tokens.weight") and not own.endswith("embed_tokens"):
            yield f"{own}.weight", stream[first]


def _by_expert(module: Any, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The matrices of a layer's experts, as checkpoints that are not fused have them. module:
    vLLM's."""
    stem, _, kind = name.rpartition(".")
    parts = [module.ckpt_down_proj_name]
    if kind == "gate_up_proj":
        parts = [module.ckpt_gate_proj_name, module.ckpt_up_proj_name]
    for number, matrices in enumerate(tensor):
        for part, matrix in zip(parts, matrices.chunk(len(parts)), strict=True):
            yield f"{stem}.{number}.{part}.weight", matrix


@torch.no_grad()
def _fingerprints_held(
    model: nn.Module,
    stream: Mapping[str, Tensor],
    version: int,
    *,
    load_first: bool = False,
) -> dict[str, int]:
    """The fingerprints of those tensors that are in the stream, as the model holds them.
    load_first: every parameter is loaded directly before it is read."""
    prints = _fingerprints_of_experts(model, stream)
    for module, parameter, names in parameters_of(model):
        if are_experts(module) or names[0] not in stream:
            continue
        parts = parts_of(module, names, stream)
        if load_first:
            load_parameter(module, parameter, parts, is_tied=names[0] in prints)
        kept, packed = kept_parts(parameter, parts), _columns(module, parts, version)
        for part, rows, read in zip(parts, kept, packed, strict=True):
            held = part.source if rows is None else _with_rows(part, rows)
            patched = held if read is None else _with_columns(held, part, *read)
            if part.name not in prints or patched is not held:
                prints[part.name] = fingerprint(patched)
    return prints


def _fingerprints_of_experts(model: nn.Module, stream: Mapping[str, Tensor]) -> dict[str, int]:
    prints: dict[str, int] = {}
    for module_name, module in modules_of(model):
        if are_experts(module):
            stem = module_name.rpartition(".")[0]
            of_file = {kind: stream[f"{stem}.{name}"] for kind, name in NAMES.items()}
            for kind, held in experts_held(module, of_file).items():
                prints[f"{stem}.{NAMES[kind]}"] = fingerprint(held)
    return prints


def _is_map_proven(
    model: nn.Module, stream: Mapping[str, Tensor], prints: Mapping[str, int]
) -> bool:
    """True if all tensors of this rank could be read back and equal the file's."""
    for module, parameter, names in parameters_of(model):
        parts = parts_of(module, names, stream)
        if kept_parts(parameter, parts)[0] is None and _columns(module, parts, 0)[0] is None:
            return False
    device = next(model.parameters()).device
    return all(prints[name] == fingerprint(tensor.to(device)) for name, tensor in stream.items())


def _columns(
    module: nn.Module,
    parts: list[TensorPart],
    version: int,
) -> list[tuple[Tensor, Tensor] | None]:
    """For each part, (indices among the rank's columns, those columns as the repacked product
    returns them); None where nothing is repacked, or the product has another width."""
    product, packed = getattr(module, "cpu_linear", None), getattr(module, "weight", None)
    sizes, source = [len(part.rows) for part in parts], parts[0].source
    width = len(parts[0].columns)
    is_fit = source.ndim == 2 and getattr(module, "input_size_per_partition", width) == width
    if product is None or packed is None or not is_fit:
        return [None] * len(parts)
    columns = (version + torch.arange(min(_COLUMNS, width)) * max(1, width // _COLUMNS)) % width
    one_hot = torch.nn.functional.one_hot(columns, width).to(packed.dtype)
    read = product(one_hot, packed, None).T
    if read.shape[0] < sum(sizes):
        return [None] * len(parts)
    return [(columns, rows) for rows in torch.split(read[: sum(sizes)], sizes)]


def _with_rows(part: TensorPart, held: Tensor) -> Tensor:
    """The file's tensor with this rank's held rows written over it; the file's own object where
    both agree (up to the sign of a zero). A whole tensor is returned as it is held."""
    if part.is_whole:
        return held
    if torch.equal(part.of(part.source).to(held), held):
        return part.source
    copy = part.source.clone()
    part.of(copy).copy_(held)
    return copy


def _with_columns(tensor: Tensor, part: TensorPart, columns: Tensor, read: Tensor) -> Tensor:
    """The tensor itself if its columns agree (up to a zero's sign), else a copy with these."""
    if torch.equal(part.of(tensor)[:, columns].to(read), read):
        return tensor
    copy = tensor.clone()
    part.of(copy)[:, columns] = read.to(copy.dtype)
    return copy
