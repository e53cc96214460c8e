"""What the learner minimises: the loss of the kind chosen, and what may be added to any of them.

    gate ─▶ which responses count ─┐
    KL in the reward ─▶ advantage ─┴▶ loss of the kind + KL in the loss - entropy bonus, per token

Whatever needs a whole response is made first, from all log-probabilities of its row; the rest is a
function of each token alone. Leaves out log-probabilities and sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tasks.learner.divergence import ESTIMATORS, Estimator
from tasks.learner.finite import LARGEST_PENALTY, finite, floored
from tasks.learner.sequence_mask import ALL_PASS, Gate
from tasks.learner.token_loss import PolicyLoss, TokenBatch
from tasks.learner.whole_responses import Lengths, means, spread, sums_to_go

KlPlace = Literal["loss", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of a token, with all its terms."""

    loss: PolicyLoss
    sequence_mask: Gate = ALL_PASS
    kl_coefficient: float = 0.0  # of the KL to the reference; 0: there is no reference
    kl_estimator: Estimator = "k3"
    kl_place: KlPlace = "loss"
    entropy_coefficient: float = 0.0

    @property
    def needs_whole_responses(self) -> bool:
        """Whether a token's loss depends on other tokens' log-probabilities."""
        return (
            self.loss.needs_whole_responses or self.sequence_mask.drops or self._penalises("reward")
        )

    def completed(self, logp: Tensor, batch: TokenBatch, lengths: Lengths) -> TokenBatch:
        """A row's tokens with what follows from its whole responses, given all of their
        log-probabilities; held constant.

        The KL penalty is the learner's own, not the sampler's: it is the learner that must stay
        near the reference, with whose numerics alone the reference's can be compared. A token
        answers for its own penalty and those after it, as for every reward. As part of the reward
        it is that of the proximal policy, the same in all updates of a step.
        """
        if not self.needs_whole_responses:
            return batch
        logp, advantage = floored(logp.detach()), batch.advantage
        proximal = logp if batch.proximal is None else batch.proximal
        ratios = spread(means(logp - batch.behaviour, lengths), lengths, logp.device)
        if batch.reference is not None and self._penalises("reward"):
            penalty = ESTIMATORS[self.kl_estimator](proximal, batch.reference)
            penalty = penalty.clamp(-LARGEST_PENALTY, LARGEST_PENALTY)
            advantage = advantage - self.kl_coefficient * sums_to_go(penalty, lengths)
        is_dropped = spread(self.dropped(logp, batch, lengths), lengths, logp.device)
        return replace(
            batch,
            # as if the policy had sampled it: no ratio of a dropped response is ever computed
            behaviour=torch.where(is_dropped, logp, batch.behaviour),
            proximal=None if batch.proximal is None else torch.where(is_dropped, logp, proximal),
            advantage=advantage.masked_fill(is_dropped, 0.0),
            mean_log_ratio=ratios.masked_fill(is_dropped, 0.0).to(logp),
        )

    def dropped(self, logp: Tensor, batch: TokenBatch, lengths: Lengths) -> Tensor:
        """Which responses of a row the gate drops, (responses,) bool on the host."""
        return self.sequence_mask.dropped(logp, batch.behaviour, batch.advantage, lengths)

    def weighted_loss(self, logp: Tensor, batch: TokenBatch) -> Tensor:
        """(tokens,) as they are summed, without the entropy bonus."""
        loss = self.loss.token_loss(logp, batch).loss
        if batch.reference is not None and self._penalises("loss"):
            divergence = ESTIMATORS[self.kl_estimator](logp, batch.reference)
            loss = finite(loss + finite(self.kl_coefficient * divergence, divergence), loss)
        return batch.weight * loss

    def by_logp(self, logp: Tensor, batch: TokenBatch) -> Tensor:
        """Derivative of the loss sum by each log-probability."""
        with torch.enable_grad():
            leaf = logp.detach().requires_grad_()
            total = self.weighted_loss(leaf, batch).sum()
        return torch.autograd.grad(total, leaf)[0]

    def by_entropy(self, batch: TokenBatch) -> Tensor | None:
        """Derivative of the loss sum by the entropy at each token; None without a bonus."""
        return -self.entropy_coefficient * batch.weight if self.entropy_coefficient else None

    def _penalises(self, place: KlPlace) -> bool:
        return self.kl_coefficient > 0 and self.kl_place == place
