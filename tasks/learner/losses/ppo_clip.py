"""PPO's clipped loss."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.learner.token_loss import TokenBatch, TokenLoss


class PpoClipLoss(BaseModel):
    """-min(ratio A, clip(ratio) A), whose upper bound may lie higher than the lower (clip-higher).

    A step makes one update, so that the ratio to the learner's own log-probabilities is 1 and the
    clip never acts: what remains is the policy gradient with truncated importance weights. The
    ratio to the engine's log-probabilities does move; the clip then takes the truncation's place.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
