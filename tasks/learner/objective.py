"""The objective that the learner minimises: the chosen loss, and terms that go with any loss.

    sequence mask ─▶ which responses count ─┐
    KL in the reward ─▶ advantage ──────────┴▶ loss of the kind + KL in the loss - entropy bonus

Terms that need a whole response are computed first, from all log-probabilities of its row; the rest
is a function of each token alone. A response that the sequence mask drops has no policy gradient
and stays in the divisor; its KL term and entropy bonus stay, because they carry no importance
weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from tasks.learner.log_ratios import ESTIMATORS, LARGEST_PENALTY, Estimator, finite, floored, k1
from tasks.learner.token_loss import (
    Lengths,
    PolicyLoss,
    TokenBatch,
    TokenLoss,
    means,
    spread,
    sums_to_go,
)

if TYPE_CHECKING:  # configurations are read without torch
    from torch import Tensor


class NoSequenceMask(FrozenConfig):
    """Every response is trained, however far it drifted."""

    kind: Literal["open"] = Field(default="open", description="Drops no response.")
    drops: ClassVar[bool] = False

    def explain(self) -> str:
        return "no response is dropped"

    def dropped(
        self, logp: Tensor, sampling_logp: Tensor, advantage: Tensor, lengths: Lengths
    ) -> Tensor:
        """(responses,) bool on the host: False for every response."""
        import torch

        return torch.zeros(len(lengths), dtype=torch.bool)


class DriftMask(FrozenConfig):
    """Drops a response whose mean drift over its tokens exceeds the bound. Drift estimates
    KL(engine || learner) from d = engine - learner log-probability. `k1`, the mean of d, with
    negative_only is off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556; slime);
    `geometric`, |mean of d|, is geometric rejection sampling (verl). In `k2` and `k3`, tokens of
    opposite sign do not cancel."""

    kind: Literal["drift"] = Field(
        default="drift", description="Drops responses that the policy has drifted away from."
    )
    statistic: Literal["k1", "geometric", "k2", "k3"] = Field(
        default="k3",
        description=(
            "Measure of drift, a mean over tokens: of engine - learner log-probability (k1; its"
            " absolute value: geometric), of half its square (k2), of the k3 estimate of their KL."
        ),
    )
    bound: float = Field(default=0.01, gt=0, description="Responses that drifted more are dropped.")
    negative_only: bool = Field(
        default=False, description="Drop only responses with a negative advantage."
    )
    drops: ClassVar[bool] = True

    def explain(self) -> str:
        which = "with a negative advantage " if self.negative_only else ""
        return f"responses {which}are dropped above {self.bound:g} of {self.statistic} drift"

    def dropped(
        self, logp: Tensor, sampling_logp: Tensor, advantage: Tensor, lengths: Lengths
    ) -> Tensor:
        """(responses,) bool on the host: True for every response that drifted beyond the bound. The
        arguments are (tokens,)."""
        if self.statistic == "geometric":
            drift = means(k1(sampling_logp, logp), lengths).abs()
        else:
            drift = means(ESTIMATORS[self.statistic](sampling_logp, logp), lengths)
        is_far = ~(drift <= self.bound)  # and what is no number
        return is_far & (means(advantage, lengths) < 0) if self.negative_only else is_far


SequenceMask = NoSequenceMask | DriftMask
NO_MASK = NoSequenceMask()
SequenceMaskConfig = Annotated[SequenceMask, Field(discriminator="kind")]


KlPlace = Literal["loss", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of a token with all its terms."""

    loss: PolicyLoss
    sequence_mask: SequenceMask = NO_MASK
    kl_coefficient: float = 0.0  # of the KL to the reference; 0: there is no reference
    kl_estimator: Estimator = "k3"
    kl_place: KlPlace = "loss"
    entropy_coefficient: float = 0.0

    @property
    def needs_whole_responses(self) -> bool:
        """True if a token's loss depends on other tokens' log-probabilities."""
        return (
            self.loss.needs_whole_responses or self.sequence_mask.drops or self._penalises("reward")
        )

    def completed(self, logp: Tensor, batch: TokenBatch, lengths: Lengths) -> TokenBatch:
        """Add the terms of whole responses to a row's tokens, computed from all log-probabilities
        of the row and held constant. The KL penalty is the learner's, not the engine's, whose
        numerics are not the reference's. A token is charged with its own penalty and those after
        it, as with every reward. As part of the reward, the penalty is that of the proximal policy,
        the same in all updates of a step."""
        import torch

        if not self.needs_whole_responses:
            return batch
        logp, advantage = floored(logp.detach()), batch.advantage
        proximal = logp if batch.proximal is None else batch.proximal
        ratios = spread(means(logp - batch.sampling_logp, lengths), lengths, logp.device)
        if batch.reference is not None and self._penalises("reward"):
            penalty = ESTIMATORS[self.kl_estimator](proximal, batch.reference)
            penalty = penalty.clamp(-LARGEST_PENALTY, LARGEST_PENALTY)
            advantage = advantage - self.kl_coefficient * sums_to_go(penalty, lengths)
        is_dropped = spread(self.dropped(logp, batch, lengths), lengths, logp.device)
        return replace(
            batch,
            # as if the policy had sampled it: no ratio of a dropped response is ever computed
            sampling_logp=torch.where(is_dropped, logp, batch.sampling_logp),
            proximal=None if batch.proximal is None else torch.where(is_dropped, logp, proximal),
            advantage=advantage.masked_fill(is_dropped, 0.0),
            mean_log_ratio=ratios.masked_fill(is_dropped, 0.0).to(logp),
        )

    def dropped(self, logp: Tensor, batch: TokenBatch, lengths: Lengths) -> Tensor:
        """(responses,) bool on the host: the responses of a row that the sequence mask drops."""
        return self.sequence_mask.dropped(logp, batch.sampling_logp, batch.advantage, lengths)

    def weighted_loss(
        self, logp: Tensor, batch: TokenBatch, own: TokenLoss | None = None
    ) -> Tensor:
        """(tokens,): each token's loss times its weight, without the entropy bonus. own: the loss
        of the kind, if it is known already."""
        loss = (own or self.loss.token_loss(logp, batch)).loss
        if batch.reference is not None and self._penalises("loss"):
            divergence = ESTIMATORS[self.kl_estimator](logp, batch.reference)
            loss = finite(loss + finite(self.kl_coefficient * divergence, divergence), loss)
        return batch.weight * loss

    def by_logp(self, logp: Tensor, batch: TokenBatch) -> Tensor:
        """The derivative of the loss sum by each log-probability, (tokens,)."""
        import torch

        with torch.enable_grad():
            leaf = logp.detach().requires_grad_()
            total = self.weighted_loss(leaf, batch).sum()
        return torch.autograd.grad(total, leaf)[0]

    def by_entropy(self, batch: TokenBatch) -> Tensor | None:
        """The derivative of the loss sum by each token's entropy, (tokens,); None without one."""
        return -self.entropy_coefficient * batch.weight if self.entropy_coefficient else None

    def _penalises(self, place: KlPlace) -> bool:
        return self.kl_coefficient > 0 and self.kl_place == place
