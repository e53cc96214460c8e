"""Predicts by arithmetic, before anything is loaded, how much device memory the learner needs.

                 replicated, n ranks           sharded, n ranks
    weights      c whole                       4 / n: the masters
    gradients    4 whole                       4 / n
    masters      4 / n                         -
    moments      8 / n                         8 / n
    reference    c whole                       c / n
    critic       as weights to moments again   refused

An adapter has gradients, masters and moments of its own, whole or cut over n, and leaves the model
one copy in the compute dtype (c, or c / n), which is the reference too.

Bytes per parameter; c = 2 in bf16 and 4 in fp32. On top come what a packed row needs (activations,
the head's chunk, layers of sharded parameters that are whole for a moment) and what an update does.
`research.gpu.tracked_memory` follows the allocations of real passes beside these numbers. Leaves
out a backend's own memory and what torch's allocator loses between blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from artifacts.models.size import ModelSize
from tasks.engines.transports.base import BUCKET_ELEMENTS, TransportKind
from tasks.learner.architecture import empty_model, read_config
from tasks.learner.expert_parallel import spreadable
from tasks.learner.head import ROWS_PER_CHUNK
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.lora_config import LoraConfig
from tasks.learner.sharded_parameters import units_of

FP32, BF16 = 4, 2
COMPUTED = {"bf16": BF16, "fp32": FP32, "mixed": FP32}
MOMENTS = 2 * FP32


def model_size(path: Path) -> ModelSize:
    """Read the size of the model in a Hugging Face directory, from its config.json alone."""
    return size_of(empty_model(read_config(path)))


def size_of(model: Any) -> ModelSize:  # Any: transformers models carry no types
    """The numbers of this model."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tables = {id(embedding.weight), id(head.weight)}
    modules = [module for unit in units_of(model) for module in unit]
    own = [list(module.parameters()) for module in modules if module is not model.base_model]
    layers = [each for each in own if not tables & set(map(id, each))]
    experts = [module for _, module in spreadable(model, 1)]
    of_experts = {id(each) for module in experts for each in module.parameters()}
    return ModelSize(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        largest_layer=max(sum(each.numel() for each in layer) for layer in layers),
        experts=len(experts[0].down_proj) if experts else 0,
        expert=sum(each[0].numel() for each in experts[0].parameters()) if experts else 0,
        beside_experts=max(
            sum(each.numel() for each in layer if id(each) not in of_experts) for layer in layers
        ),
        table=embedding.weight.numel(),
        is_tied=head.weight is embedding.weight,
        **_widths(model),
    )


def _widths(model: Any) -> dict[str, Any]:  # Any: as above, and numbers
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    top = getattr(config, "num_experts_per_tok", None) or 0
    inner = top * getattr(config, "moe_intermediate_size", 0) or config.intermediate_size
    layer: nn.Module = next(units_of(model))[0]
    norms = {
        name.rpartition(".")[2]: module.weight.numel()
        for name, module in layer.named_modules()
        if type(module).__name__.endswith("Norm")
    }
    for name, repeats in (("q_norm", heads), ("k_norm", key_heads)):
        if norms.get(name) == head_width:  # one for each head
            norms[name] *= repeats
    matrices = (each.numel() for each in layer.parameters() if each.dim() == 2)
    return {
        "num_layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "inner": inner,
        "top": top,
        "heads": heads,
        "head_width": head_width,
        "key_heads": key_heads,
        "normed": sum(norms.values()),
        "largest_matrix": max(matrices),
        "linear": tuple(
            (name.rpartition(".")[2], module.in_features, module.out_features)
            for name, module in layer.named_modules()
            if isinstance(module, nn.Linear)
        ),
    }


def adapter_parameters(lora: LoraConfig, size: ModelSize) -> int:
    """The number of parameters of an adapter, or of several together; 0 without one."""
    of_layer = (ins + outs for name, ins, outs in size.linear if name in lora.modules)
    return len(lora.names) * lora.rank * size.num_layers * sum(of_layer)


def bytes_per_parameter(config: LearnerConfig, num_ranks: int, per_machine: int = 0) -> float:
    """Bytes that a rank holds for each parameter of the model, an adapter's not counted, after the
    gradients of a step. per_machine: as for `Ranks`."""
    computed = COMPUTED[config.compute]
    if config.lora.rank:
        base = computed / _together(config, num_ranks, per_machine)
        return base + (_whole_training(computed, num_ranks) if config.has_critic else 0)
    reference = computed if config.kl_coefficient else 0
    if config.parameters == "sharded":
        return (FP32 + FP32 + reference) / (per_machine or num_ranks) + MOMENTS / num_ranks
    trained = _whole_training(computed, num_ranks)
    return (2 * trained if config.has_critic else trained) + reference


def _whole_training(computed: int, num_ranks: int) -> float:
    """Bytes of a trained parameter that every rank holds whole."""
    return computed + FP32 + (FP32 + MOMENTS) / num_ranks


def _together(config: LearnerConfig, num_ranks: int, per_machine: int) -> int:
    """The number of ranks that hold the weights of a model together."""
    return (per_machine or num_ranks) if config.parameters == "sharded" else 1


def _layer(
    config: LearnerConfig, size: ModelSize, num_ranks: int, per_machine: int
) -> tuple[int, int]:
    """The parameters of the largest layer that are gathered, and those of a layer that are not:
    this rank's experts, where ranks share them evenly."""
    together = _together(config, num_ranks, per_machine)
    if config.parameters == "replicated" or not size.experts or size.experts % together:
        return size.largest_layer, 0
    return size.beside_experts, size.experts // together * size.expert


def whole_bytes(
    config: LearnerConfig, size: ModelSize, num_ranks: int, per_machine: int = 0
) -> int:
    """The most bytes that sharded parameters need beyond `bytes_per_parameter`, for parameters that
    are whole for a moment; 0 where they are replicated. In a layer's backward pass: the layer, the
    next one, its gradients, and the previous layer's that are being reduced, in fp32; of spread
    experts the rounded ones, and their gradients before and after they are fp32. In the head: the
    head and the fp32 sum of its gradient, which a tied embedding keeps until the layers are done.
    per_machine: as for `Ranks`."""
    if config.parameters == "replicated":
        return 0
    computed = COMPUTED[config.compute]
    gathered, spread = _layer(config, size, num_ranks, per_machine)
    if config.lora.rank:  # nothing of the base has a gradient
        return computed * max(2 * gathered, size.table)
    rounded = 2 * computed if computed != FP32 else 0
    layer = (3 * computed + FP32) * gathered + (rounded + FP32) * spread
    head, table = (computed + FP32) * size.table, FP32 * size.table
    return max(layer + table, head) if size.is_tied else max(layer, head)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    """The device memory of a rank in bytes, by what takes it."""

    held: Mapping[str, int]  # as long as the rank lives
    row: Mapping[str, int]  # besides, while it trains a packed row
    update: int  # besides, while it makes an update

    @property
    def peak(self) -> int:
        """The most bytes at any time."""
        return sum(self.held.values()) + max(sum(self.row.values()), self.update)


def learner_memory(
    config: LearnerConfig,
    size: ModelSize,
    num_ranks: int,
    row_tokens: int,
    per_machine: int = 0,
) -> LearnerMemory:
    """Predict the memory of a rank. row_tokens: computed tokens of the largest packed row, all of
    them predicting. per_machine: as for `Ranks`."""
    num, computed = size.num_parameters, COMPUTED[config.compute]
    is_sharded = config.parameters == "sharded"
    whole = num // _together(config, num_ranks, per_machine)
    together = (per_machine or num_ranks) if is_sharded else num_ranks
    adapter = adapter_parameters(config.lora, size)
    is_adapted = config.lora.rank > 0
    frozen = whole if is_adapted else 0  # beneath the adapter, and its reference
    trained = (adapter if is_adapted else num) + (num if config.has_critic else 0)
    is_cut = is_sharded and not is_adapted  # an adapter is whole on every rank
    held = {
        "weights": computed * (frozen + (0 if is_cut else trained)),
        "gradients": FP32 * (whole if is_cut else trained),
        "masters": FP32 * trained // (together if is_cut else num_ranks),
        "moments": MOMENTS * trained // num_ranks,
        "reference": computed * whole if config.kl_coefficient and not is_adapted else 0,
    }
    kept, backward = activation_bytes(config, size, row_tokens)
    logits = head_bytes(size, computed, row_tokens)
    row = {  # a layer's backward begins when the head has no logits any more
        "activations": kept,
        "logits": logits if logits >= backward else 0,
        "backward": backward if logits < backward else 0,
        "whole layers": whole_bytes(config, size, num_ranks, per_machine),
    }
    # ranks of a group reduce into a slice of their own; within a machine backward passes do so
    is_reduced = is_cut and together == num_ranks
    largest = num if config.has_critic else trained
    update = FP32 * largest // num_ranks if num_ranks > 1 and not is_reduced else 0
    return LearnerMemory(
        held={name: each for name, each in held.items() if each},
        row={name: each for name, each in row.items() if each},
        update=update,
    )


def transfer_bytes(
    config: LearnerConfig,
    size: ModelSize,
    kind: TransportKind,
    num_ranks: int,
    per_machine: int = 0,
) -> tuple[int, int]:
    """Bytes that a publication takes for a moment besides what is held: of a rank that offers, and
    of each engine beside its share. Weights that are not one bf16 buffer already are gathered into
    one, sharded ones a layer, table or owner's experts at a time; engines receive a broadcast in
    two buckets. per_machine: as for `Ranks`."""
    if config.lora.engine_shape is not None:  # megabytes
        num = adapter_parameters(config.lora, size)
        received = 2 * BF16 * min(num, BUCKET_ELEMENTS) if kind == "broadcast" else 0
        is_gathered = COMPUTED[config.compute] != BF16 or bool(config.lora.sweep)
        return (BF16 * num if is_gathered else 0), received
    buckets = min(size.num_parameters, max(BUCKET_ELEMENTS, size.largest_layer, size.table))
    received = 2 * BF16 * buckets if kind == "broadcast" else 0
    is_sharded = config.parameters == "sharded"
    most = max(*_layer(config, size, num_ranks, per_machine), size.table)
    whole = COMPUTED[config.compute] * most if is_sharded else 0
    is_made = is_sharded or config.lora.rank > 0 or COMPUTED[config.compute] != BF16
    gathers = kind != "file" and is_made
    return whole + (BF16 * size.num_parameters if gathers else 0), received


def activation_bytes(config: LearnerConfig, size: ModelSize, tokens: int) -> tuple[int, int]:
    """The bytes that forward keeps, and the most beyond them in the backward of a layer.

    Counted from the modules of a layer: norms keep their input in fp32 and their normed input;
    attention its queries, keys, values, output and a sum for each head; the gated product four
    tensors of its width; experts the copies of a token that go to them and come back, as many on
    every rank if routing is even; products of matrices their input, an adapter's a tensor of its
    rank besides, and one of the output's width for a moment. In the gated product's backward three
    gradients of its width exist while one kept tensor has gone, beside the gradients of the
    residual stream, of experts' copies and of a matrix."""
    c = COMPUTED[config.compute]
    attention = c * size.head_width * (2 * size.heads + 2 * size.key_heads) + FP32 * size.heads
    layer = (FP32 + c) * size.normed + 2 * c * size.hidden + attention + 4 * c * size.inner
    copies = c * size.top * size.hidden
    layer += 2 * copies
    backward = c * size.hidden + 2 * c * size.inner + 3 * copies
    if config.lora.rank:
        layer += c * config.lora.rank * sum(name in config.lora.modules for name, *_ in size.linear)
        backward += c * size.inner
    kept = size.num_layers * layer
    if config.recompute_layers:
        kept, backward = size.num_layers * c * size.hidden, layer + backward
    # the embedded tokens, the final norm, its output and what predicts, with its gradient
    ends = c * size.hidden + (FP32 + c) * size.hidden + 3 * c * size.hidden
    return tokens * (kept + ends), tokens * backward + c * size.largest_matrix


def head_bytes(size: ModelSize, computed: int, tokens: int) -> int:
    """The most bytes of a chunk of logits: beside it, in fp32, its copy (unless it is), its
    probabilities and their product, or the gradient of the head's matrix."""
    chunk, copies = min(tokens, ROWS_PER_CHUNK) * size.vocabulary, 2 if computed == FP32 else 3
    return computed * chunk + max(copies * FP32 * chunk, computed * size.table)
