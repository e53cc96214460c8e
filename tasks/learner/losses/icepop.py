"""IcePop: tokens on which engine and learner disagree too much are left out, either way."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.learner.finite import weighted_logp
from tasks.learner.losses.importance import importance
from tasks.learner.token_loss import TokenBatch, TokenLoss


class IcePopLoss(BaseModel):
    """-u A logp where mask_low <= u <= mask_high, else nothing; u = policy/engine held constant
    (Ling team, arXiv 2510.18855, IcePop).

    A truncated weight keeps a token's noise, bounded; a mask drops it, small ratios too, where the
    engine was sure of what the learner finds unlikely. What is dropped stays in the divisor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["icepop"] = Field(
        default="icepop", description="Policy gradient, tokens with extreme weights are masked."
    )
    mask_low: float = Field(
        default=0.5, ge=0, lt=1, description="Tokens with a weight below are left out."
    )
    mask_high: float = Field(
        default=5.0, gt=1, description="Tokens with a weight above are left out."
    )
    clips: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    needs_whole_responses: ClassVar[bool] = False

    def explain(self) -> str:
        bounds = f"{self.mask_low:g} to {self.mask_high:g}"
        return f"tokens whose weight learner/engine is not within {bounds} are masked"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        ratio = importance(logp, batch, "token")
        is_masked = (ratio < self.mask_low) | (ratio > self.mask_high)
        weight = torch.where(is_masked, 0.0, ratio)
        return TokenLoss(
            loss=weighted_logp(weight * batch.advantage, logp),
            truncated=torch.zeros_like(is_masked),
            clipped=is_masked,
        )
