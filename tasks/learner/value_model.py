"""The critic's model: the policy's backbone with a head of one number instead of the vocabulary.

    tokens ─▶ embedding ─▶ decoder layers (tree attention) ─▶ hidden state of each predicting node
                                                              ─▶ value of what precedes the token

Begins as the model that the policy begins with, and a head of zeros: all values are 0 then. The
head computes in fp32; the embedding's gradient is summed in the compute dtype within a row. Leaves
out the loss and the optimizer (critic).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tasks.learner.flat_parameters import ReplicatedParameters
from tasks.learner.packing import PackedBatch
from tasks.learner.policy import (
    DTYPES,
    ComputeDtype,
    load_decoder,
    predicting_states,
    recompute,
)
from tasks.learner.ranks import Ranks


class ValueModel(nn.Module):
    """A backbone and its head; the names of its parameters in a checkpoint."""

    def __init__(self, backbone: Any) -> None:  # Any: an untyped transformers model
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(int(backbone.config.hidden_size), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: PackedBatch, ids: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
        """(P,) fp32, the value at the node that predicts each target."""
        embedded = self.backbone.get_input_embeddings()(ids(batch.tokens))[None]
        hidden, rows = predicting_states(self.backbone, batch, embedded, ids)
        values = nn.functional.linear(
            hidden.float(), self.head.weight.float(), self.head.bias.float()
        )
        return values[rows, 0]


class Valuer:
    """A value model that is trained, with sums of gradients beside its parameters."""

    def __init__(self, model: ValueModel, parameters: ReplicatedParameters) -> None:
        self._model, self.parameters = model, parameters

    @torch.no_grad()
    def values(self, batch: PackedBatch) -> Tensor:
        """(P,) fp32, nothing for a gradient."""
        return self._forward(batch)

    def backward(self, batch: PackedBatch, derivative_of: Callable[[Tensor], Tensor]) -> Tensor:
        """The values, after adding a loss's gradient to the sums of gradients; `derivative_of`:
        the loss's derivative by each value."""
        values = self._forward(batch)
        torch.autograd.backward([values], [derivative_of(values.detach())])
        return values.detach()

    def _forward(self, batch: PackedBatch) -> Tensor:
        found: Tensor = self._model(batch, self._ids)
        return found

    def _ids(self, values: tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.parameters.device)


def load_valuer(
    model_path: str, compute: ComputeDtype, ranks: Ranks, recompute_layers: bool
) -> Valuer:
    """The critic of a model, whole on every rank. Raises ValueError as `load_policy` does."""
    model = load_decoder(model_path, ranks, "replicated")
    model.requires_grad_(True)
    if recompute_layers:
        recompute(model)
    values = ValueModel(model.base_model).to(ranks.device)
    return Valuer(values, ReplicatedParameters(values, DTYPES[compute], ranks))
