"""Losses with a clipped ratio: the smaller of the plain and the clipped surrogate counts (PPO,
GSPO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tasks.learner.log_ratios import finite, floored, ratio
from tasks.learner.token_loss import PolicyLoss, TokenBatch, TokenLoss, importance

if TYPE_CHECKING:  # configurations are read without torch
    from torch import Tensor


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Returns min(ratio A, clip(ratio, 1 - low, 1 + high) A) for each token, and a mask of the
    tokens where the clip decided, which have no gradient."""
    import torch

    plain = finite(ratio * advantage, ratio)
    bounded = finite(ratio.clamp(1 - low, 1 + high) * advantage, ratio)
    return torch.minimum(plain, bounded), (bounded < plain).detach()


class PpoClipLoss(PolicyLoss):
    """-w min(r A, clip(r) A), clipped to 1 - clip_low and 1 + clip_high (Schulman et al. 2017;
    clip-higher: DAPO, arXiv 2503.14476; dual clip: Ye et al., arXiv 1912.09729).

    old_policy learner is decoupled PPO (Hilton et al. 2022; AReaL): r = policy/proximal is clipped,
    and the constant w = min(proximal/engine, importance_cap) corrects for the difference between
    learner and engine. The proximal policy is the policy before the step's updates. In a step of
    one update it equals the current policy: r is 1, the clip never acts, and the loss is the policy
    gradient with truncated importance weights. With old_policy engine, r = policy/engine differs
    from 1 in any case; the clip then replaces the truncation, and w is 1.
    """

    kind: Literal["ppo_clip"] = Field(
        default="ppo_clip", description="Clipped policy-gradient loss."
    )
    clip_low: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description=(
            "No gradient down for a ratio below 1 - clip_low; acts with old_policy engine, or with"
            " several updates a step."
        ),
    )
    clip_high: float = Field(
        default=0.28,
        gt=0,
        description=(
            "No gradient up for a ratio above 1 + clip_high; acts with old_policy engine, or with"
            " several updates a step."
        ),
    )
    old_policy: Literal["learner", "engine"] = Field(
        default="learner",
        description=(
            "Whose log-probabilities divide the ratio: the learner's own as the step began, which"
            " makes it 1 in a step of one update, or the sampling engine's."
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
            " gradient; usually 3. None: it may grow without one. Needs old_policy engine, or"
            " several updates a step."
        ),
    )

    @property
    def clips(self) -> bool:
        """True if the ratio can differ from 1 in a step of one update."""
        return self.old_policy == "engine"

    def explain(self) -> str:
        dual = f", at {self.dual_clip:g} for negative advantages" if self.dual_clip else ""
        bounds = f"clipped to {1 - self.clip_low:g} to {1 + self.clip_high:g}{dual}"
        if self.clips:
            return f"the ratio learner/engine is {bounds}; no importance_cap"
        return (
            f"weights learner/engine are truncated at {self.importance_cap:g}; the ratio to the"
            f" learner as the step began is {bounds}, and 1 in a step of one update"
        )

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        import torch

        proximal = floored(logp.detach() if batch.proximal is None else batch.proximal)
        old = proximal if self.old_policy == "learner" else batch.sampling_logp
        moved = ratio(logp, old)
        kept, clipped = clipped_surrogate(moved, batch.advantage, self.clip_low, self.clip_high)
        correction = ratio(old, batch.sampling_logp)  # 1 with old_policy engine
        cap = self.importance_cap if self.old_policy == "learner" else 1.0
        if self.dual_clip is not None:
            worst = torch.where(batch.advantage < 0, self.dual_clip * batch.advantage, kept)
            clipped = clipped | (worst > kept).detach()
            kept = torch.maximum(kept, worst)
        return TokenLoss(
            loss=finite(-kept * correction.clamp(max=cap), moved),
            truncated=correction > cap,
            clipped=clipped,
        )


class GspoLoss(PolicyLoss):
    """-min(s A, clip(s) A), s = exp(mean over the response of log(policy/engine)) (Group Sequence
    Policy Optimization, arXiv 2507.18071, equations 5 to 7).

    Computed as GSPO-token (equation 13): a token's ratio has the value of s and the gradient of the
    token's own log-probability, s logp'. For advantages that are equal within a response this is
    the gradient of s itself. The published bounds, 3e-4 and 4e-4, are for an engine whose numerics
    equal the learner's: a difference of 0.04 a token, usual in bf16, moves s by 0.004 over a
    hundred tokens. Check train/clip_fraction before narrowing the bounds.
    """

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
    needs_whole_responses: ClassVar[bool] = True

    def explain(self) -> str:
        bounds = f"{1 - self.clip_low:g} to {1 + self.clip_high:g}"
        return f"the ratio learner/engine of a response (geometric) is clipped to {bounds}"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        import torch

        bounded = floored(logp)
        own = torch.exp(bounded - bounded.detach())  # 1, with the gradient of the token
        whole = importance(logp, batch, "geometric") * own
        kept, clipped = clipped_surrogate(whole, batch.advantage, self.clip_low, self.clip_high)
        return TokenLoss(loss=-kept, truncated=torch.zeros_like(clipped), clipped=clipped)
