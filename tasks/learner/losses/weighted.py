"""Policy gradients whose tokens are weighted by importance (`token_loss`), bounded in five ways or
not at all; the gradient of no token is clipped away, but IcePop masks tokens.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from tasks.learner.log_ratios import weighted_logp
from tasks.learner.token_loss import Level, TokenBatch, TokenLoss, importance


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
