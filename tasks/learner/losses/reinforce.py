"""The policy gradient with truncated importance weights."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.learner.token_loss import TokenBatch, TokenLoss


class ReinforceLoss(BaseModel):
    """-w A logp with the truncated importance weight w = min(policy/engine, cap) held constant:
    never clips a gradient away."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["reinforce"] = Field(
        default="reinforce", description="Policy gradient, truncated importance weights."
    )
    importance_cap: float = Field(
        default=2.0, gt=0, description="Bound on the weight policy/engine."
    )
    clips: ClassVar[bool] = False

    def explain(self) -> str:
        return f"weights learner/engine are truncated at {self.importance_cap:g}"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        importance = torch.exp(logp.detach() - batch.behaviour)
        weight = importance.clamp(max=self.importance_cap)
        return TokenLoss(
            loss=-weight * batch.advantage * logp,
            importance=importance,
            truncated=importance > self.importance_cap,
            clipped=torch.zeros_like(importance, dtype=torch.bool),
        )
