"""The critic: a second model that values each token's past, and its training.

    values  (P,) before the step's first update ─▶ advantages and returns (`gae`)
    train   gradients of the clipped squared error to the returns
    update  its own AdamW step, with the learning rate of the critic's own schedule

It is the policy's initial backbone, replicated, in fp32, with a head of one output, which begins
with zeros: all values are 0 at first. Within a row, the embedding's gradient is summed in the
compute dtype.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from tasks.learner.learner_config import ComputeDtype, CriticConfig
from tasks.learner.optimizer import Updater
from tasks.learner.parameters import ReplicatedParameters
from tasks.learner.policy import (
    DTYPES,
    load_decoder,
    predicting_states,
    recompute,
)
from tasks.learner.ranks import Ranks
from tasks.learner.reports import AccumulateReport
from tasks.learner.row_report import PendingReport
from tasks.learner.rows import DeviceRow, rows_to_compile


class ValueModel(nn.Module):
    """A backbone with a value head; its parameter names are those of the critic's checkpoint."""

    def __init__(self, backbone: Any) -> None:  # Any: an untyped transformers model
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(int(backbone.config.hidden_size), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, row: DeviceRow) -> Tensor:
        """Returns (P,) fp32: the value at the node that predicts each target."""
        embedded = self.backbone.get_input_embeddings()(row.tokens)[None]
        hidden = predicting_states(self.backbone, row, embedded)
        values = nn.functional.linear(
            hidden.float(), self.head.weight.float(), self.head.bias.float()
        )
        return values[row.predictions.rows, 0]


def load_value_model(model_path: str, device: torch.device, recompute_layers: bool) -> ValueModel:
    """Load a value model for the device, in fp32, into host memory. Raises ValueError as
    `load_policy` does."""
    model = load_decoder(model_path, device)
    model.requires_grad_(True)
    if recompute_layers:
        recompute(model)
    return ValueModel(model.base_model)


FOLDER = "critic"  # its folder in a checkpoint


def value_loss(values: Tensor, before: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """(tokens,): half the squared error, or that of the value held within `clip` of its value
    before the step, whichever is larger (PPO's clipped value loss)."""
    error = (values - returns).square()
    if clip is not None:
        held = before + (values - before).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return 0.5 * error


class Critic:
    """This rank's critic: its model, optimizer and sums of gradients."""

    def __init__(
        self,
        config: CriticConfig,
        model_path: str,
        compute: ComputeDtype,
        recompute_layers: bool,
        ranks: Ranks,
    ) -> None:
        self._config = config
        self._model = load_value_model(model_path, ranks.device, recompute_layers)
        self.parameters = ReplicatedParameters(self._model, DTYPES[compute], ranks)
        self.updater = Updater(config.optimizer, self.parameters, ranks)

    def warm(self, max_tokens: int) -> None:
        """As `MicroStep.warm`, for the critic's passes. Not collective."""
        window: int | None = getattr(self._model.backbone.config, "sliding_window", None)
        for row in rows_to_compile(self.parameters.device, window, max_tokens):
            values = self.values(row)
            self.train(row, torch.zeros_like(values), values, values)
        self.parameters.discard()

    @torch.no_grad()
    def values(self, row: DeviceRow) -> Tensor:
        """Returns (P,) fp32: the current value before each target of a row; no gradients."""
        values: Tensor = self._model(row)
        return values

    def train(
        self, row: DeviceRow, weight: Tensor, before: Tensor, returns: Tensor
    ) -> PendingReport:
        """Add the gradient of a row's weighted sum of value losses; `weight`, `before` and
        `returns` are (P,). Returns a report of the loss and the time."""
        started, clip = time.time(), self._config.value_clip
        values: Tensor = self._model(row)
        leaf = values.detach().requires_grad_()
        total = (weight * value_loss(leaf, before, returns, clip)).sum()
        torch.autograd.backward([values], [torch.autograd.grad(total, leaf)[0]])
        lost = (weight * value_loss(values.detach(), before, returns, clip)).double().sum()
        return PendingReport(
            known=AccumulateReport(),
            started_s=started,
            ended_s=time.time(),
            sums={"value_loss_sum": lost},
        )
