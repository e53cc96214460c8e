"""Compiles what lies between the matrix products of a decoder: norms, rotary embeddings, gated
products. On a GPU each of them is otherwise two to ten kernels that read and write all hidden
states.

    norm ─▶ q, k, v ─▶ norm, rotary ─▶ attention ─▶ out ─▶ + ─▶ norm ─▶ gated product ─▶ +
    ~~~~              ~~~~  ~~~~~~                              ~~~~    ~~~~~~~~~~~~~

Attention is compiled by itself (`tree_attention`): its plan, a new one for every row, never becomes
part of a compiled layer, so that no row compiles a layer again. Leaves out the vocabulary (`head`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from artifacts.models.importing import importing_transformers
from tasks.learner.architecture import text_model

ROTARY = "apply_rotary_pos_emb"  # its name in transformers' modules
# compiled for each use of a function: with and without gradients, shapes of heads and of layers
_WAYS = 64


def fuse_layers(model: Any, backend: str = "inductor") -> int:  # Any: an untyped transformers model
    """Compile, in place, the norms and gated products of every decoder layer, and the rotary
    embedding of its attention; rows of any length use what one has compiled. Returns how many
    modules are compiled. A model whose part cannot be traced whole is an error at its first pass,
    not a slow run."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(_WAYS, torch._dynamo.config.recompile_limit)
    number = 0
    for layer in layers_of(model):
        for module in _fused(layer):
            module.compile(backend=backend, dynamic=True, fullgraph=True)
            number += 1
        for module in layer.modules():
            _compile_rotary(sys.modules[type(module).__module__], backend)
    return number


def layers_of(model: Any) -> Iterator[nn.Module]:  # Any: as above
    """The decoder layers, from the embedding to the head."""
    with importing_transformers():
        from transformers.modeling_layers import GradientCheckpointingLayer

    for module in text_model(model).modules():
        if isinstance(module, GradientCheckpointingLayer):  # what decoder layers derive from
            yield module


def _fused(layer: nn.Module) -> Iterator[nn.Module]:
    """The parts of a layer that are compiled: what has no attention in it and no experts, which
    choose their tokens by number, and is no single matrix product."""
    for child in layer.children():
        if _has(child, "attention"):
            yield from (part for part in child.children() if _has(part, "norm"))
        elif not _has(child, "expert") and not isinstance(child, nn.Linear | nn.Dropout):
            yield child


def _has(module: nn.Module, word: str) -> bool:
    """True if the module, or one within, is of a class with this word in its name."""
    return any(word in type(part).__name__.lower() for part in module.modules())


def _compile_rotary(code: Any, backend: str) -> None:  # Any: a module of transformers
    """Compile the rotary embedding of a module of models, once in a process."""
    rotary = getattr(code, ROTARY, None)
    if rotary is None or hasattr(rotary, "_torchdynamo_orig_callable"):
        return
    setattr(code, ROTARY, torch.compile(rotary, backend=backend, dynamic=True, fullgraph=True))
