"""Per-token losses by name, and how tokens are weighted into one number.

Everything is a sum with its normaliser: the loss of an update is sum(weight * token loss) /
sum(normaliser), both over all ranks, divided once (invariants 4 and 5, docs/architecture.md).
Leaves out where log-probabilities come from (policy) and the division (trainer).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.learner.token_loss import TokenBatch, TokenLoss

_FROZEN = ConfigDict(frozen=True, extra="forbid")


class PpoClipLoss(BaseModel):
    """-min(ratio A, clip(ratio) A), whose upper bound may lie higher than the lower (clip-higher).

    A step makes one update, so that the ratio to the learner's own log-probabilities is 1 and the
    clip never acts: what remains is the policy gradient with truncated importance weights. The
    ratio to the engine's log-probabilities does move; the clip then takes the truncation's place.
    """

    model_config = _FROZEN

    kind: Literal["ppo_clip"] = Field(
        default="ppo_clip", description="Clipped policy-gradient loss."
    )
    clip_low: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="No gradient down for a ratio below 1 - clip_low; only with old_policy engine.",
    )
    clip_high: float = Field(
        default=0.28,
        gt=0,
        description="No gradient up for a ratio above 1 + clip_high; only with old_policy engine.",
    )
    old_policy: Literal["learner", "engine"] = Field(
        default="learner",
        description=(
            "Whose log-probabilities divide the ratio: the learner's own, which makes it 1 "
            "as long as a step has one update, or the sampling engine's."
        ),
    )
    importance_cap: float = Field(
        default=2.0,
        gt=0,
        description="Bound on the weight learner/engine (truncated); only with old_policy learner.",
    )

    @property
    def clips(self) -> bool:
        """Only where the ratio can differ from 1."""
        return self.old_policy == "engine"

    def explain(self) -> str:
        if self.clips:
            bounds = f"{1 - self.clip_low:g} to {1 + self.clip_high:g}"
            return f"the ratio learner/engine is clipped to {bounds}; no importance_cap"
        return (
            f"weights learner/engine are truncated at {self.importance_cap:g}; with one update a"
            " step the ratio is 1, clip_low and clip_high do nothing"
        )

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        old = logp.detach() if self.old_policy == "learner" else batch.behaviour
        ratio = torch.exp(logp - old)
        plain = ratio * batch.advantage
        bounded = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * batch.advantage
        correction = torch.exp(old - batch.behaviour)
        loss = -torch.minimum(plain, bounded) * correction.clamp(max=self.importance_cap)
        return TokenLoss(
            loss=loss,
            importance=torch.exp(logp.detach() - batch.behaviour),
            truncated=correction > self.importance_cap,
            clipped=(bounded < plain).detach(),
        )


class ReinforceLoss(BaseModel):
    """-w A logp with the truncated importance weight w = min(policy/engine, cap) held constant:
    never clips a gradient away."""

    model_config = _FROZEN

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


LossConfig = Annotated[
    PpoClipLoss  # the ratio is clipped
    | ReinforceLoss,  # the weight is truncated
    Field(discriminator="kind"),
]


class TokenMean(BaseModel):
    """Every token counts the same: long responses weigh more than short ones."""

    model_config = _FROZEN

    kind: Literal["token_mean"] = Field(
        default="token_mean", description="Mean over all tokens of the update."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0, float(num_tokens)


class SequenceMean(BaseModel):
    """Every response counts the same: the mean over responses of the mean over their tokens (GRPO
    as published)."""

    model_config = _FROZEN

    kind: Literal["sequence_mean"] = Field(
        default="sequence_mean", description="Mean over responses of their tokens' mean."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0 / num_tokens, 1.0


class ConstantLength(BaseModel):
    """Token sums over a constant, then the mean over responses (Dr.GRPO): no reward for being short
    or long."""

    model_config = _FROZEN

    kind: Literal["constant"] = Field(
        default="constant", description="Mean over responses of their token sum over a constant."
    )
    length_tokens: int = Field(
        default=256, ge=1, description="The constant; usually the bound on response tokens."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0 / self.length_tokens, 1.0


NormalisationConfig = Annotated[
    TokenMean | SequenceMean | ConstantLength, Field(discriminator="kind")
]
"""`of(num_tokens)` gives a response's weight per token and its addition to the normaliser."""


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """Unbiased, non-negative estimate of KL(policy || reference) per token: exp(d) - d - 1 with
    d = reference - logp.
    """
    difference = reference - logp
    return torch.expm1(difference) - difference
