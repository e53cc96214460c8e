"""GSPO: one ratio per response, clipped for all of its tokens together."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.learner.finite import floored
from tasks.learner.losses.clipping import clipped_surrogate
from tasks.learner.losses.importance import importance
from tasks.learner.token_loss import TokenBatch, TokenLoss


class GspoLoss(BaseModel):
    """-min(s A, clip(s) A), s = exp(mean over the response of log(policy/engine)) (Group Sequence
    Policy Optimization, arXiv 2507.18071, equations 5 to 7).

    As GSPO-token (equation 13): a token's ratio has the value of s and the gradient of its own
    log-probability, s logp', which for advantages that are equal within a response is the gradient
    of s itself. The published bounds, 3e-4 and 4e-4, are for an engine whose numerics equal the
    learner's: a difference of 0.04 a token, usual in bf16, moves s by 0.004 over a hundred tokens.
    Look at train/clip_fraction before narrowing them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["gspo"] = Field(
        default="gspo", description="Clipped policy-gradient loss with one ratio per response."
    )
    clip_low: float = Field(
        default=0.03,
        gt=0,
        lt=1,
        description="No gradient down for a response whose ratio is below 1 - clip_low.",
    )
    clip_high: float = Field(
        default=0.04,
        gt=0,
        description="No gradient up for a response whose ratio is above 1 + clip_high.",
    )
    clips: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    needs_whole_responses: ClassVar[bool] = True

    def explain(self) -> str:
        bounds = f"{1 - self.clip_low:g} to {1 + self.clip_high:g}"
        return f"the ratio learner/engine of a response (geometric) is clipped to {bounds}"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        bounded = floored(logp)
        own = torch.exp(bounded - bounded.detach())  # 1, with the gradient of the token
        whole = importance(logp, batch, "geometric") * own
        kept, clipped = clipped_surrogate(whole, batch.advantage, self.clip_low, self.clip_high)
        return TokenLoss(
            loss=-kept,
            truncated=torch.zeros_like(clipped),
            clipped=clipped,
        )
