"""Policy gradients: without a correction, and with truncated importance weights."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.learner.finite import weighted_logp
from tasks.learner.losses.importance import Level, importance
from tasks.learner.token_loss import TokenBatch, TokenLoss


class PolicyGradientLoss(BaseModel):
    """-A logp (Williams 1992): right for tokens of the very policy that is trained.

    It ignores who sampled a token: neither the engine's other numerics nor older weights are
    corrected. There to compare with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["policy_gradient"] = Field(
        default="policy_gradient", description="Policy gradient without any correction."
    )
    clips: ClassVar[bool] = False
    corrects_staleness: ClassVar[bool] = False
    needs_whole_responses: ClassVar[bool] = False

    def explain(self) -> str:
        return "no weights: tokens count as if the learner had sampled them"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        none = torch.zeros_like(logp, dtype=torch.bool)
        return TokenLoss(loss=weighted_logp(batch.advantage, logp), truncated=none, clipped=none)


class ReinforceLoss(BaseModel):
    """-w A logp with the truncated importance weight w = min(policy/engine, cap) held constant:
    never clips a gradient away.

    Truncated importance sampling (Ionides 2008; Espeholt et al. 2018, IMPALA), of tokens or of
    whole responses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["reinforce"] = Field(
        default="reinforce", description="Policy gradient, truncated importance weights."
    )
    importance_cap: float = Field(
        default=2.0, gt=0, description="Bound on the weight policy/engine."
    )
    level: Level = "token"
    clips: ClassVar[bool] = False
    corrects_staleness: ClassVar[bool] = True

    @property
    def needs_whole_responses(self) -> bool:
        return self.level != "token"

    def explain(self) -> str:
        whose = "" if self.level == "token" else f" of responses ({self.level})"
        return f"weights learner/engine{whose} are truncated at {self.importance_cap:g}"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        ratio = importance(logp, batch, self.level)
        weight = ratio.clamp(max=self.importance_cap)
        return TokenLoss(
            loss=weighted_logp(weight * batch.advantage, logp),
            truncated=ratio > self.importance_cap,
            clipped=torch.zeros_like(ratio, dtype=torch.bool),
        )
