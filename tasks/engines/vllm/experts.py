"""The experts of a mixture in a vLLM model: under which names a checkpoint has them, how they are
loaded, and whether they are what the file has.

All experts of a layer are two parameters of one module (`RoutedExperts`). vLLM's CPU backend packs
both for its kernel in place, so that they keep their shapes and hold the numbers in another order.
It packs only when it builds the kernel, which an update of the weights (0.32) does not: the kernel
would read as packed what is not. Without its kernel a module builds it, and packs, at its next load
(`forget_kernels`). Nothing can be read out of packed weights, so the file's are packed as well and
compared. Leaves out experts that are spread over ranks: they are not read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

NAMES = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}  # in vLLM, and in a checkpoint


def are_experts(module: nn.Module) -> bool:
    return type(module).__name__ == "RoutedExperts"


def forget_kernels(model: nn.Module) -> None:
    """Have the next load pack the experts again. On a GPU nothing is packed on the host, and graphs
    may have captured the kernel."""
    for module in model.modules():
        if are_experts(module) and next(module.parameters()).device.type == "cpu":
            _method_of(module).moe_kernel = None


def experts_held(module: nn.Module, of_file: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of the module's parameters: the file's where the module holds what it
    would hold after loading them, else its own, flattened so that no tensor of a file equals
    them."""
    held = dict(module.named_parameters(recurse=False))
    if any(of_file[name].shape != shape for name, shape in _whole_shapes(module).items()):
        return dict(of_file)
    wanted = _packed(module, {name: of_file[name].to(held[name]) for name in held})
    return {
        name: of_file[name] if torch.equal(held[name], wanted[name]) else held[name].flatten()
        for name in held
    }


def _packed(module: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What the module would hold if it had loaded these; it stays as it is."""
    stand_in = copy(module)
    stand_in._parameters = {
        name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()
    }
    copy(_method_of(module).moe_kernel.fused_experts).process_weights_after_loading(stand_in)
    return dict(stand_in.named_parameters(recurse=False))


def _whole_shapes(module: Any) -> dict[str, tuple[int, ...]]:  # Any: a vLLM layer
    """Shapes of the parameters before they are packed, if the module is not shared by ranks."""
    num, config = module.global_num_experts, module.moe_config
    width, hidden = config.intermediate_size_per_partition, module.hidden_size
    return {"w13_weight": (num, 2 * width, hidden), "w2_weight": (num, hidden, width)}


def _method_of(module: Any) -> Any:  # Any: a vLLM layer, and what it computes by
    return module.quant_method
