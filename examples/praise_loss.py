"""A loss: responses that did better than their group are made likelier, the others are left alone.

    rollflow check loss examples/praise_loss.py:PraiseLoss

A loss gives one number per token. Weights and sums are the learner's, so that the result does not
depend on how tokens are packed (invariant 5, docs/architecture.md).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from tasks.learner.losses.weighted import weighted_loss
from tasks.learner.token_loss import PolicyLoss, TokenBatch, TokenLoss, importance


class PraiseLoss(PolicyLoss):
    """-w max(A, 0) logp with the truncated importance weight w = min(policy/engine, cap)."""

    importance_cap: float = 1.0  # `kwargs` sets it
    clips: ClassVar[bool] = True  # it cuts the gradient of every token with a negative advantage

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        ratio = importance(logp, batch, "token")
        is_bad = batch.advantage < 0
        weight = ratio.clamp(max=self.importance_cap).masked_fill(is_bad, 0.0)
        truncated = ratio > self.importance_cap
        return weighted_loss(weight, logp, batch, truncated=truncated, clipped=is_bad)
