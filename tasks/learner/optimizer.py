"""One optimizer update: gradients are reduced over the ranks, divided once, clipped, and applied by
AdamW, on every rank to the pieces that it owns. Leaves out when to update (`trainer`,
`several_updates`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.optim.adamw import adamw

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed
from tasks.learner.parameters import Piece, TrainedParameters
from tasks.learner.ranks import Ranks
from tasks.learner.reports import MadeUpdate, skip_reason


class AdamWConfig(FrozenConfig):
    """The settings of AdamW, its learning-rate schedule and the gradient clip."""

    learning_rate: float = Field(default=2e-5, gt=0, description="Learning rate after the warm-up.")
    warmup_steps: int = Field(
        default=0, ge=0, description="Steps over which the learning rate rises linearly from zero."
    )
    decay_steps: int = Field(
        default=0,
        ge=0,
        description="Step by which the learning rate has fallen linearly to its floor; 0: never.",
    )
    floor_fraction: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Floor of a falling learning rate, as a share of the full one.",
    )
    beta1: float = Field(
        default=0.9, ge=0, lt=1, description="Decay of the gradient's running mean."
    )
    beta2: float = Field(
        default=0.95, ge=0, lt=1, description="Decay of the squared gradient's running mean."
    )
    epsilon: Fixed[float] = 1e-08  # added to the root of the second moment
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="Decoupled weight decay of matrices; vectors are never decayed.",
    )
    max_grad_norm: float = Field(
        default=1.0,
        gt=0,
        description="Bound on the global gradient norm, applied after the division.",
    )

    @model_validator(mode="after")
    def _check(self) -> AdamWConfig:
        if 0 < self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"optimizer.decay_steps must be 0 or beyond warmup_steps ({self.warmup_steps}), got"
                f" {self.decay_steps}; set it to the run's num_steps, or to 0 for a constant rate"
            )
        return self

    def explain(self) -> str:
        """Describe the learning rate from the first step to the last in words."""
        rise = f"{self.learning_rate:g}, "
        if self.warmup_steps > 1:
            rise = f"up to {self.learning_rate:g} over {self.warmup_steps} steps of warm-up, then "
        if not self.decay_steps:
            return f"{rise}constant"
        floor = self.learning_rate * self.floor_fraction
        return f"{rise}down to {floor:g} by step {self.decay_steps}"

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 1: up over the warm-up, down to the floor, constant."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        fallen = (
            min(1.0, (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
            if self.decay_steps
            else 0.0
        )
        return self.learning_rate * (1.0 - fallen * (1.0 - self.floor_fraction))


class ShardedAdamW:
    """AdamW on the pieces that this rank owns, with their fp32 moments."""

    def __init__(self, config: AdamWConfig, pieces: Sequence[Piece]) -> None:
        self._config, self.pieces = config, tuple(pieces)
        self.mean = [torch.zeros_like(piece.masters) for piece in self.pieces]
        self.square = [torch.zeros_like(piece.masters) for piece in self.pieces]
        self.num_updates = 0

    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Update every piece with its gradient, at this learning rate."""
        self.num_updates += 1
        for matrices in (True, False):
            places = [
                place for place, piece in enumerate(self.pieces) if piece.is_matrix == matrices
            ]
            if not places:
                continue
            device = self.pieces[places[0]].masters.device
            made = torch.full((len(places),), float(self.num_updates - 1), device=device)
            adamw(
                [self.pieces[place].masters for place in places],
                [gradients[place] for place in places],
                [self.mean[place] for place in places],
                [self.square[place] for place in places],
                [],
                [*made.unbind()],
                fused=True,
                amsgrad=False,
                beta1=self._config.beta1,
                beta2=self._config.beta2,
                lr=rate,
                weight_decay=self._config.weight_decay if matrices else 0.0,
                eps=self._config.epsilon,
                maximize=False,
            )


_CHUNK = 1 << 20  # elements; torch's double precision copy of a chunk stays in the cache


def squared_norm(gradient: Tensor) -> Tensor:
    """The sum of the squares of all elements, a fp64 scalar. In chunks: for a norm in another
    precision, torch on a CPU first converts all of the tensor, into new memory every time."""
    norms = [
        torch.linalg.vector_norm(chunk, dtype=torch.float64)
        for chunk in torch.split(gradient, _CHUNK)
    ]
    return torch.stack(norms).square().sum()


class Updater:
    """Updates trained parameters by their accumulated gradients."""

    def __init__(self, config: AdamWConfig, parameters: TrainedParameters, ranks: Ranks) -> None:
        self._config, self.parameters, self.ranks = config, parameters, ranks
        self.optimizer = ShardedAdamW(config, parameters.pieces)

    def make(self, step: int, normaliser: float, loss_sum: float) -> MadeUpdate:
        """Apply the accumulated gradients at the learning rate of the step, unless `skip_reason`
        gives a reason not to; the gradients are zero afterwards. normaliser, loss_sum: this rank's,
        summed over the ranks here. Collective."""
        started, bound = time.time(), self._config.max_grad_norm
        normaliser, loss_sum = self.ranks.sum([normaliser, loss_sum])
        loss = loss_sum / normaliser if normaliser else 0.0
        gradients = self.parameters.reduced()
        for gradient in gradients:
            gradient.div_(normaliser or 1.0)
        norms = [squared_norm(gradient) for gradient in gradients]
        squares = sum(torch.stack(norms).tolist()) if norms else 0.0  # in one read
        grad_norm = math.sqrt(self.ranks.sum([squares])[0])
        skipped = skip_reason(normaliser, loss, grad_norm)
        if skipped is None:
            if grad_norm > bound:
                for gradient in gradients:
                    gradient.mul_(bound / grad_norm)
            self.optimizer.step(gradients, self._config.rate(step))
            self.parameters.publish()
        self.parameters.discard()
        return MadeUpdate(
            skipped=skipped,
            normaliser=normaliser,
            loss=loss,
            grad_norm=grad_norm,
            busy=(started, time.time()),
        )
