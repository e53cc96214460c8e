"""The critic: what a rank knows of the value of each token's past, and how it learns it.

    look    values before the step's first update ─▶ advantages and returns (gae)
    train   gradients of the clipped squared error to the returns
    update  its own AdamW step, with the learning rate of the critic's own schedule

On the same ranks as the policy, replicated. Leaves out whitening, and when the policy learns.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from artifacts.config_parts import with_defaults
from tasks.learner.packing import PackedBatch
from tasks.learner.policy import ComputeDtype
from tasks.learner.ranks import Ranks
from tasks.learner.reports import AccumulateReport, MadeUpdate
from tasks.learner.sharding import AdamWConfig, ShardedAdamW
from tasks.learner.shards import load_shards, save_shard
from tasks.learner.updater import Updater
from tasks.learner.value_model import load_valuer

FOLDER = "critic"  # of a checkpoint
LEARNING_RATE = 5e-5  # where no other is given


class CriticConfig(BaseModel):
    """The critic that advantages of kind gae are made with; without them there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Annotated[AdamWConfig, with_defaults({"learning_rate": LEARNING_RATE})] = Field(
        default=AdamWConfig(learning_rate=LEARNING_RATE),
        description="The critic's own AdamW, its warm-up and gradient clip.",
    )
    value_clip: float | None = Field(
        default=0.5,
        gt=0,
        description=(
            "How far a value may move within a step before it has no gradient in that direction;"
            " None: any distance."
        ),
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="First steps of a run in which the critic alone learns."
    )

    def explain(self) -> str:
        """In words, what it is and when it learns."""
        held = "" if self.value_clip is None else f", values held within {self.value_clip:g} a step"
        first = f"; it alone learns in the first {self.warmup_steps}" if self.warmup_steps else ""
        return (
            "a second copy of the model with one output, on the learner's ranks; learning rate"
            f" {self.optimizer.explain()}{held}{first}"
        )


def value_loss(values: Tensor, before: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """(tokens,): half the squared error, the larger one of the value and of the value held within
    `clip` of what it was before the step (PPO's clipped value loss)."""
    error = (values - returns).square()
    if clip is not None:
        held = before + (values - before).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return 0.5 * error


class Critic:
    """One rank's critic."""

    def __init__(
        self,
        config: CriticConfig,
        model_path: str,
        compute: ComputeDtype,
        recompute_layers: bool,
        ranks: Ranks,
    ) -> None:
        self._config, self._ranks = config, ranks
        self._valuer = load_valuer(model_path, compute, ranks, recompute_layers)
        self.parameters = self._valuer.parameters
        self._optimizer = ShardedAdamW(config.optimizer, self.parameters.pieces)
        self._updater = Updater(
            config.optimizer.max_grad_norm, self.parameters, self._optimizer, ranks
        )

    def look(self, batch: PackedBatch) -> Tensor:
        """(P,) the value before each target of a row, now."""
        return self._valuer.values(batch)

    def train(
        self, batch: PackedBatch, weight: Tensor, before: Tensor, returns: Tensor
    ) -> AccumulateReport:
        """Adds the gradient of a row's weighted loss sum, all (P,); its loss and its time."""
        started = time.time()
        clip = self._config.value_clip

        def derivative(values: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = values.requires_grad_()
                total = (weight * value_loss(leaf, before, returns, clip)).sum()
            return torch.autograd.grad(total, leaf)[0]

        values = self._valuer.backward(batch, derivative)
        lost = (weight * value_loss(values, before, returns, clip)).double().sum()
        return AccumulateReport(value_loss_sum=float(lost), busy=((started, time.time()),))

    def update(self, step: int, normaliser: float, loss_sum: float) -> MadeUpdate:
        """One AdamW step. Collective."""
        return self._updater.make(normaliser, loss_sum, self._config.optimizer.rate(step))

    def discard(self) -> None:
        """Forget what was accumulated."""
        self.parameters.discard()

    def save(self, path: str, step: int) -> None:
        """This rank's shard, in a folder of the policy's checkpoint."""
        folder = str(Path(path) / FOLDER)
        save_shard(folder, step, self._optimizer, self.parameters.shapes, self._ranks)

    def load(self, path: str) -> None:
        """Restore bit by bit. Collective."""
        self.discard()
        load_shards(str(Path(path) / FOLDER), self._optimizer, self.parameters.shapes)
        self.parameters.publish()
