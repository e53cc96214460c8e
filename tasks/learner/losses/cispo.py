"""CISPO: the importance weight is clipped, the gradient never."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.learner.finite import weighted_logp
from tasks.learner.losses.importance import importance
from tasks.learner.token_loss import TokenBatch, TokenLoss


class CispoLoss(BaseModel):
    """-w A logp with the constant w = clip(u, 1 - clip_low, 1 + clip_high), u = policy/engine
    (MiniMax-M1, arXiv 2506.13585, equation 4).

    Rare words that turn an argument have large ratios; PPO's clip silences them, this one only
    bounds them. With the published lower bound of 0 it is `reinforce` with a cap of 1 + clip_high.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["cispo"] = Field(
        default="cispo", description="Policy gradient, importance weights clipped on both sides."
    )
    clip_low: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="No weight is below 1 - clip_low; 1, as published, bounds nothing from below.",
    )
    clip_high: float = Field(default=4.0, gt=0, description="No weight is above 1 + clip_high.")
    clips: ClassVar[bool] = False
    corrects_staleness: ClassVar[bool] = True
    needs_whole_responses: ClassVar[bool] = False

    def explain(self) -> str:
        low, high = 1 - self.clip_low, 1 + self.clip_high
        return f"weights learner/engine are clipped to {low:g} to {high:g}, no gradient is"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        ratio = importance(logp, batch, "token")
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return TokenLoss(
            loss=weighted_logp(weight * batch.advantage, logp),
            truncated=(ratio < 1 - self.clip_low) | (ratio > 1 + self.clip_high),
            clipped=torch.zeros_like(ratio, dtype=torch.bool),
        )
