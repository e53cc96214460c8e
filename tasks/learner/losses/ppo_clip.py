"""PPO's clipped loss, decoupled from the sampler or not."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from tasks.learner.losses.clipping import clipped_surrogate
from tasks.learner.token_loss import TokenBatch, TokenLoss


class PpoClipLoss(BaseModel):
    """-w min(r A, clip(r) A), clipped to 1 - clip_low and 1 + clip_high (Schulman et al. 2017;
    clip-higher: DAPO, arXiv 2503.14476; dual clip: Ye et al., arXiv 1912.09729).

    Decoupled PPO (Hilton et al. 2022; AReaL) is old_policy learner: r = policy/proximal is clipped,
    and the constant w = min(proximal/engine, importance_cap) corrects for who sampled. The proximal
    policy is the one that the step's updates start from. A step makes one update, so that it is the
    current policy: r is 1, the clip never acts, and what remains is the policy gradient with
    truncated importance weights. With old_policy engine r = policy/engine does move; the clip then
    takes the truncation's place, and w is 1.
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
    dual_clip: float | None = Field(
        default=None,
        gt=1,
        description=(
            "Bound on the ratio of a token with a negative advantage, beyond which it has no"
            " gradient; usually 3. None: it may grow without one. Only with old_policy engine."
        ),
    )
    corrects_staleness: ClassVar[bool] = True
    needs_whole_responses: ClassVar[bool] = False

    @model_validator(mode="after")
    def _dual_clip_acts(self) -> Self:
        if self.dual_clip is not None and not self.clips:
            raise ValueError(
                "learner.loss.dual_clip needs old_policy engine, got old_policy learner: its ratio"
                " is 1 and never comes near a bound; set old_policy=engine, or leave it out"
            )
        return self

    @property
    def clips(self) -> bool:
        """Only where the ratio can differ from 1."""
        return self.old_policy == "engine"

    def explain(self) -> str:
        if self.clips:
            bounds = f"{1 - self.clip_low:g} to {1 + self.clip_high:g}"
            dual = f", at {self.dual_clip:g} for negative advantages" if self.dual_clip else ""
            return f"the ratio learner/engine is clipped to {bounds}{dual}; no importance_cap"
        return (
            f"weights learner/engine are truncated at {self.importance_cap:g}; with one update a"
            " step the ratio is 1, clip_low and clip_high do nothing"
        )

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        old = logp.detach() if self.old_policy == "learner" else batch.behaviour
        ratio = torch.exp(logp - old)
        kept, clipped = clipped_surrogate(ratio, batch.advantage, self.clip_low, self.clip_high)
        correction = torch.exp(old - batch.behaviour)
        if self.dual_clip is not None:
            worst = torch.where(batch.advantage < 0, self.dual_clip * batch.advantage, kept)
            clipped = clipped | (worst > kept).detach()
            kept = torch.maximum(kept, worst)
        return TokenLoss(
            loss=-kept * correction.clamp(max=self.importance_cap),
            truncated=correction > self.importance_cap,
            clipped=clipped,
        )
