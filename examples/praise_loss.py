"""A loss: responses that did better than their group are made likelier, the others are left alone.

A loss gives one number per token. Weights and sums are the learner's, so that the result does not
depend on how tokens are packed (invariant 5, docs/architecture.md).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from tasks.learner.token_loss import PolicyLoss, TokenBatch, TokenLoss


class PraiseLoss(PolicyLoss):
    """-w max(A, 0) logp with the truncated importance weight w = min(policy/engine, cap)."""

    kind: Literal["praise"] = Field("praise", description="Learns from good responses alone.")
    importance_cap: float = Field(1.0, gt=0, description="Bound on the weight policy/engine.")
    clips: ClassVar[bool] = True  # it cuts the gradient of every token with a negative advantage

    def explain(self) -> str:
        return f"good responses alone, weights truncated at {self.importance_cap:g}"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        importance = torch.exp(logp.detach() - batch.sampling_logp)
        weight = importance.clamp(max=self.importance_cap)
        return TokenLoss(
            loss=-weight * batch.advantage.clamp(min=0) * logp,
            truncated=importance > self.importance_cap,
            clipped=batch.advantage < 0,
        )
