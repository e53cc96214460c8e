"""What runs inside every vLLM worker: load a weight file, and say what the worker holds afterwards.

vLLM mixes `WeightReader` into its worker class (`worker_extension_cls`): each tensor-parallel rank reads the file itself, no
tensor crosses a process border. It then reads the weights back under the checkpoint's names (vLLM fuses q, k, v and gate, up):

* tensors that the model keeps as they are (embeddings, norms, every tensor on a GPU) are read whole;
* the CPU backend repacks linear weights and drops the originals. One-hot rows through the packed product return single input
  columns exactly, so `_COLUMNS` columns per matrix are read back after each load, others each version. What was read is written
  over the file's tensor before its fingerprint is taken: the fingerprint is the file's exactly when those columns agree;
* with tensor parallelism a sharded tensor is not read back: its fingerprint is the file's.

Leaves out any comparison with the learner: that is the sync gate's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from artifacts.weights import fingerprint, read_weights

_COLUMNS = 8  # input columns read back per repacked matrix; costs one decode step of as many tokens


class WeightReader:
    """Methods that vLLM's worker gains; called by name through `collective_rpc`."""

    model_runner: Any  # vLLM's model runner, which its worker class provides

    def load_version(self, path: str, version: int) -> dict[str, int]:
        """Load the file into the model in place; returns the fingerprint of every tensor held now, by checkpoint name.

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
        f"a weight file must hold exactly the model's tensors; {path} lacks {sorted(expected - found)[:3]} and has "
        f"{sorted(found - expected)[:3]} too many; write it from the model that the engine was started with"
    )


def _parameters(model: nn.Module) -> Iterator[tuple[nn.Module, Tensor, list[str]]]:
    """Every (module, parameter, checkpoint names of its parts along the output axis); a tied one under its first names."""
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

    The CPU backend gives a tied output head a repacked copy of its own, which vLLM does not renew unless it gets that name too.
    """
    name_of = {id(module): name for name, module in model.named_modules()}
    tied = [
        (f"{name_of[id(module)]}.weight", stream[first])
        for module, _, (first, *_) in _parameters(model)
        if first.endswith("embed_tokens.weight") and not name_of[id(module)].endswith("embed_tokens")
    ]
    return [*stream.items(), *tied]


@torch.no_grad()
def _fingerprints_held(model: nn.Module, stream: Mapping[str, Tensor], version: int) -> dict[str, int]:
    prints: dict[str, int] = {}
    for module, parameter, names in _parameters(model):
        sources = [stream[name] for name in names]
        held = _split(parameter, sources) or sources
        for name, tensor, read in zip(names, held, _columns(module, sources, version), strict=True):
            patched = tensor if read is None else _patched(tensor, *read)
            if name not in prints or patched is not tensor:
                prints[name] = fingerprint(patched)
    return prints


def _split(parameter: Tensor, sources: list[Tensor]) -> list[Tensor] | None:
    """The parts of a fused parameter as they lie in the engine; None when it was repacked away or is a shard."""
    rows = [source.shape[0] for source in sources]
    if parameter.ndim != sources[0].ndim or parameter.shape[0] < sum(rows) or parameter.shape[1:] != sources[0].shape[1:]:
        return None
    return list(torch.split(parameter[: sum(rows)], rows))


def _columns(module: nn.Module, sources: list[Tensor], version: int) -> list[tuple[Tensor, Tensor] | None]:
    """For each part, (column indices, those columns as the repacked product holds them); None where nothing is repacked."""
    product = getattr(module, "cpu_linear", None)
    rows = [source.shape[0] for source in sources]
    width = sources[0].shape[-1]
    if product is None or sources[0].ndim != 2 or getattr(module, "input_size_per_partition", width) != width:
        return [None] * len(sources)
    columns = (version + torch.arange(min(_COLUMNS, width)) * max(1, width // _COLUMNS)) % width
    one_hot = torch.nn.functional.one_hot(columns, width).to(sources[0].dtype)
    read = product(one_hot, module.weight, None).T
    if read.shape[0] < sum(rows):
        return [None] * len(sources)
    return [(columns, part) for part in torch.split(read[: sum(rows)], rows)]


def _patched(tensor: Tensor, columns: Tensor, read: Tensor) -> Tensor:
    """The tensor itself when the columns agree (a zero's sign aside), else a copy with what was read written over them."""
    if torch.equal(tensor[:, columns], read):
        return tensor
    copy = tensor.clone()
    copy[:, columns] = read.to(copy.dtype)
    return copy
