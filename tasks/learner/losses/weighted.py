"""Policy gradients with importance weights (`token_loss`), which are bounded in five ways or not at
all. No token's gradient is clipped away, except that IcePop masks tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tasks.learner.log_ratios import weighted_logp
from tasks.learner.token_loss import Level, PolicyLoss, TokenBatch, TokenLoss, importance

if TYPE_CHECKING:  # configurations are read without torch
    from torch import Tensor


def weighted_loss(
    weight: Tensor,
    logp: Tensor,
    batch: TokenBatch,
    *,
    truncated: Tensor | None = None,
    clipped: Tensor | None = None,
) -> TokenLoss:
    """-weight A logp with a constant weight (tokens,), and the masks of the tokens whose weight was
    bounded, or whose gradient was removed; None for none."""
    import torch

    none = torch.zeros_like(logp, dtype=torch.bool)
    return TokenLoss(
        loss=weighted_logp(weight * batch.advantage, logp),
        truncated=none if truncated is None else truncated,
        clipped=none if clipped is None else clipped,
    )


class PolicyGradientLoss(PolicyLoss):
    """-A logp (Williams 1992): right for tokens of the very policy that is trained. A baseline:
    corrects neither for the engine's different numerics nor for tokens of older weights."""

    kind: Literal["policy_gradient"] = Field(
        default="policy_gradient", description="Policy gradient without any correction."
    )
    corrects_staleness: ClassVar[bool] = False

    def explain(self) -> str:
        return "no weights: tokens count as if the learner had sampled them"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        import torch

        return weighted_loss(torch.ones_like(logp), logp, batch)


class ReinforceLoss(PolicyLoss):
    """-w A logp with the truncated importance weight w = min(policy/engine, cap), held constant,
    per token or per response (Ionides 2008; Espeholt et al. 2018, IMPALA): never clips a gradient
    away."""

    kind: Literal["reinforce"] = Field(
        default="reinforce", description="Policy gradient, truncated importance weights."
    )
    importance_cap: float = Field(
        default=2.0, gt=0, description="Bound on the weight policy/engine."
    )
    level: Level = "token"

    @property
    def needs_whole_responses(self) -> bool:
        return self.level != "token"

    def explain(self) -> str:
        whose = "" if self.level == "token" else f" of responses ({self.level})"
        return f"weights learner/engine{whose} are truncated at {self.importance_cap:g}"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        ratio = importance(logp, batch, self.level)
        weight = ratio.clamp(max=self.importance_cap)
        return weighted_loss(weight, logp, batch, truncated=ratio > self.importance_cap)


class CispoLoss(PolicyLoss):
    """-w A logp with the constant w = clip(u, 1 - clip_low, 1 + clip_high), u = policy/engine
    (MiniMax-M1, arXiv 2506.13585, equation 4). Rare words that turn an argument have large ratios:
    PPO's clip removes their gradients, CISPO only bounds their weights. With the published lower
    bound of 0 it equals `reinforce` with a cap of 1 + clip_high."""

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

    def explain(self) -> str:
        low, high = 1 - self.clip_low, 1 + self.clip_high
        return f"weights learner/engine are clipped to {low:g} to {high:g}, no gradient is"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        ratio = importance(logp, batch, "token")
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        bounded = (ratio < 1 - self.clip_low) | (ratio > 1 + self.clip_high)
        return weighted_loss(weight, logp, batch, truncated=bounded)


class ToprLoss(PolicyLoss):
    """Reward > 0: -w+ A logp. Reward <= 0: -w- min(u, 1) A logp, u = policy/engine held constant
    (Tapered Off-Policy REINFORCE, arXiv 2503.14286; w+ and w- are the weighted form of ROLL).
    Pushing away responses that the policy no longer gives only destroys; pulling towards good ones
    does no harm. So the sign of the reward (after overlong shaping) decides, not that of the
    advantage: within a group of wrong answers, the least wrong one is still a bad one. The paper's
    ratio is that of the response (level sequence), ROLL's that of the token."""

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
        import torch

        ratio = importance(logp, batch, self.level)
        is_good = batch.reward > 0
        tapered = self.negative_weight * ratio.clamp(max=1.0)
        weight = torch.where(is_good, self.positive_weight, tapered)
        return weighted_loss(weight, logp, batch, truncated=~is_good & (ratio > 1))


class IcePopLoss(PolicyLoss):
    """-u A logp where mask_low <= u <= mask_high, else nothing; u = policy/engine held constant
    (Ling team, arXiv 2510.18855, IcePop). A mask, unlike a truncated weight, removes a token's
    noise, also that of tokens of which the engine was sure and which the learner finds unlikely.
    Masked tokens still count in the divisor."""

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

    def explain(self) -> str:
        bounds = f"{self.mask_low:g} to {self.mask_high:g}"
        return f"tokens whose weight learner/engine is not within {bounds} are masked"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        import torch

        ratio = importance(logp, batch, "token")
        is_masked = (ratio < self.mask_low) | (ratio > self.mask_high)
        weight = torch.where(is_masked, 0.0, ratio)
        return weighted_loss(weight, logp, batch, clipped=is_masked)
