"""Predicts by arithmetic, before anything is loaded, how much device memory the learner needs.

                 replicated, n ranks           sharded, n ranks
    weights      c whole                       4 / n: the masters
    gradients    4 whole                       4 / n
    masters      4 / n                         -
    moments      8 / n                         8 / n
    reference    c whole                       c / n
    critic       as weights to moments again   refused

Bytes per parameter; c = 2 in bf16 and 4 in fp32. Sharded parameters also need room for the layers
that are whole for a moment. Leaves out activations, which grow with `max_tokens_per_microbatch`,
and a backend's own memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.learner.architecture import empty_model, read_config
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.sharded_parameters import units_of

FP32 = 4
COMPUTED = {"bf16": 2, "fp32": FP32}
MOMENTS = 2 * FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The numbers of a model's parameters that its memory depends on."""

    num_parameters: int  # tied ones once
    largest_layer: int  # number of parameters in the largest layer
    table: int  # number of parameters in the embedding
    is_tied: bool  # whether the head is the embedding


def model_size(path: Path) -> ModelSize:
    """Read the size of the model in a Hugging Face directory, from its config.json alone."""
    model = empty_model(read_config(path))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tables = {id(embedding.weight), id(head.weight)}
    layers = [
        sum(parameter.numel() for parameter in module.parameters())
        for modules in units_of(model)
        for module in modules
        if module is not model.base_model
        and not tables & {id(parameter) for parameter in module.parameters()}
    ]
    return ModelSize(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        largest_layer=max(layers),
        table=embedding.weight.numel(),
        is_tied=head.weight is embedding.weight,
    )


def bytes_per_parameter(config: LearnerConfig, num_ranks: int) -> float:
    """Bytes that a rank holds for each parameter after the gradients of a step."""
    computed = COMPUTED[config.compute]
    reference = computed if config.kl_coefficient else 0
    if config.parameters == "sharded":
        return (FP32 + FP32 + MOMENTS + reference) / num_ranks
    trained = computed + FP32 + (FP32 + MOMENTS) / num_ranks
    return (2 * trained if config.has_critic else trained) + reference


def whole_bytes(config: LearnerConfig, size: ModelSize) -> int:
    """The most bytes that sharded parameters need beyond `bytes_per_parameter`, for parameters that
    are whole for a moment; 0 where they are replicated. In a layer's backward pass: the layer, the
    next one, its gradients, and the previous layer's that are being reduced, in fp32. In the head:
    the head and the fp32 sum of its gradient, which a tied embedding keeps until the layers are
    done."""
    if config.parameters == "replicated":
        return 0
    computed = COMPUTED[config.compute]
    layer = (3 * computed + FP32) * size.largest_layer
    head, table = (computed + FP32) * size.table, FP32 * size.table
    return max(layer + table, head) if size.is_tied else max(layer, head)
