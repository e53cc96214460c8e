"""TOPR: good responses as they are, bad ones only as far as the policy still gives them."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from tasks.learner.finite import weighted_logp
from tasks.learner.losses.importance import Level, importance
from tasks.learner.token_loss import TokenBatch, TokenLoss


class ToprLoss(BaseModel):
    """Reward > 0: -w+ A logp. Reward <= 0: -w- min(u, 1) A logp, u = policy/engine held constant
    (Tapered Off-Policy REINFORCE, arXiv 2503.14286; w+ and w- are the weighted form of ROLL).

    To push away what the policy no longer says only destroys; to pull towards what was good never
    does harm. So it is the sign of the reward that decides, as training sees it, and not that of
    the advantage: within a group of wrong answers the least wrong one stays a bad one. The paper's
    ratio is that of the response (level sequence), ROLL's that of the token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["topr"] = Field(
        default="topr", description="Policy gradient, weights taper off for bad responses alone."
    )
    positive_weight: float = Field(
        default=1.0, ge=0, le=1e6, description="Scales the loss of responses with a reward above 0."
    )
    negative_weight: float = Field(
        default=1.0,
        ge=0,
        le=1e6,
        description="Scales the loss of responses with a reward of 0 or less.",
    )
    level: Level = "token"
    clips: ClassVar[bool] = False
    corrects_staleness: ClassVar[bool] = True

    @model_validator(mode="after")
    def _learns(self) -> Self:
        if not (self.positive_weight or self.negative_weight):
            raise ValueError(
                "learner.loss.positive_weight or negative_weight must be > 0, got 0 for both:"
                " nothing would be learned; raise one"
            )
        return self

    @property
    def needs_whole_responses(self) -> bool:
        return self.level != "token"

    def explain(self) -> str:
        whose = "" if self.level == "token" else f" of responses ({self.level})"
        return (
            f"{self.positive_weight:g} where the reward is above 0, else {self.negative_weight:g}"
            f" times learner/engine{whose}, truncated at 1"
        )

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        ratio = importance(logp, batch, self.level)
        is_good = batch.reward > 0
        tapered = self.negative_weight * ratio.clamp(max=1.0)
        weight = torch.where(is_good, self.positive_weight, tapered)
        return TokenLoss(
            loss=weighted_logp(weight * batch.advantage, logp),
            truncated=~is_good & (ratio > 1),
            clipped=torch.zeros_like(ratio, dtype=torch.bool),
        )
