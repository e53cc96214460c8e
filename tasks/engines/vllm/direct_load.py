"""A version's tensors straight into a vLLM model: one copy or one repacking of each, and nothing in
between.

vLLM's own reload plans every parameter anew on the meta device, runs its loaders twice, allocates
the whole layer once more and copies it back. Here a parameter that the model keeps is overwritten
where it lies, and a weight that the CPU backend repacks is repacked from the file. It writes by the
map of `model_parts`, so it may be used only where that map has been proven on the very model:
`worker` has vLLM load the first version and reads back what came of it. Models with anything but
plain layers always go through vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tasks.engines.vllm.experts import are_experts
from tasks.engines.vllm.model_parts import SHARDED, TensorPart, kept_parts

_PLAIN_METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
_PLAIN_ATTENTION = "Attention"  # derives nothing from weights


def is_plain(model: nn.Module) -> bool:
    """Whether the model consists of layers whose weights are the checkpoint's, at most repacked
    matrix by matrix."""
    return all(
        _is_plain_layer(module) for module in model.modules() if not _is_made_of_layers(module)
    ) and not hasattr(model, "process_weights_after_loading")


def _is_made_of_layers(module: nn.Module) -> bool:
    return hasattr(module, "load_weights") and not are_experts(module)


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
    """One parameter of a plain layer.

    module: a vLLM layer, which has no useful type. is_tied: whether another module has loaded the
    parameter.
    """
    kept = kept_parts(parameter, list(parts))
    if not is_tied:
        for part, rows in zip(parts, kept, strict=True):
            if rows is not None:
                rows.copy_(part.of(part.source))
    if getattr(module, "cpu_linear", None) is not None and parts[0].source.ndim == 2:
        _repack(module, parameter, parts, is_kept=kept[0] is not None)


def _repack(module: Any, parameter: Tensor, parts: Sequence[TensorPart], *, is_kept: bool) -> None:
    """Have the layer pack its weight anew as it did at its start. Its parameter stays the object
    that it is, empty unless the layer keeps it."""
    if not is_kept:
        whole = torch.cat([part.of(part.source) for part in parts]).to(parameter.dtype)
        module.weight = nn.Parameter(whole, requires_grad=False)
    module.quant_method.process_weights_after_loading(module)
    module.weight = parameter
