"""Data parallelism with a sharded optimizer (ZeRO-1) over the flat buffers; the same code on gloo
and NCCL.

    gradients (every rank, whole) --reduce-scatter--> own slice -> divide, clip, AdamW on fp32
    masters -> values --all-gather--> whole

Each rank owns an equal slice of masters and moments. Leaves out when to update.
"""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.optim.adamw import adamw

from tasks.learner.flat_parameters import FlatParameters
from tasks.learner.ranks import Ranks


class AdamWConfig(BaseModel):
    """The optimizer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    epsilon: float = Field(
        default=1e-8, gt=0, description="Added to the root of the second moment."
    )
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

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1: up over the warm-up, then down to the floor,
        which it keeps."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        fallen = (
            min(1.0, (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
            if self.decay_steps
            else 0.0
        )
        return self.learning_rate * (1.0 - fallen * (1.0 - self.floor_fraction))


class ShardedAdamW:
    """fp32 masters and Adam moments of one rank's slice of the flat parameters."""

    def __init__(
        self, config: AdamWConfig, flat: FlatParameters, masters: Tensor, ranks: Ranks
    ) -> None:
        """`masters` are the initial fp32 values, whole; only the slice is kept."""
        self._config, self._flat, self._ranks = config, flat, ranks
        size = flat.values.numel() // ranks.world_size
        self.start, self.end = ranks.rank * size, (ranks.rank + 1) * size
        self.masters = masters[self.start : self.end].clone()
        self.mean, self.square = torch.zeros_like(self.masters), torch.zeros_like(self.masters)
        self.num_updates = 0

    def step(self, gradient: Tensor, rate: float) -> None:
        """AdamW on the slice's gradient, then every rank's values. Collective."""
        self.num_updates += 1
        for matrices in (True, False):
            pieces = [
                (start, end) for start, end, is_matrix in self._pieces() if is_matrix == matrices
            ]
            self._step_pieces(
                gradient, pieces, rate, self._config.weight_decay if matrices else 0.0
            )
        self.publish()

    def publish(self) -> None:
        """Round every rank's masters into the values that compute. Collective."""
        self._flat.values[self.start : self.end].copy_(self.masters)
        self._ranks.all_gather(self._flat.values)

    def _pieces(self) -> list[tuple[int, int, bool]]:
        """What of each parameter lies in the slice, relative to it, and whether it is a matrix."""
        cuts = [
            (max(slot.start, self.start), min(slot.end, self.end), len(slot.shape) > 1)
            for slot in self._flat.slots
        ]
        return [
            (start - self.start, end - self.start, is_matrix)
            for start, end, is_matrix in cuts
            if start < end
        ]

    def _step_pieces(
        self, gradient: Tensor, pieces: list[tuple[int, int]], rate: float, weight_decay: float
    ) -> None:
        def views(whole: Tensor) -> list[Tensor]:
            return [whole[start:end] for start, end in pieces]

        before = torch.tensor(float(self.num_updates - 1), device=self.masters.device)
        adamw(
            views(self.masters),
            views(gradient),
            views(self.mean),
            views(self.square),
            [],
            [before.clone() for _ in pieces],
            fused=True,
            amsgrad=False,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            lr=rate,
            weight_decay=weight_decay,
            eps=self._config.epsilon,
            maximize=False,
        )
