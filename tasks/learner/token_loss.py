"""The seam of a loss: one number per response token, from the log-probabilities around it.

    TokenBatch + current log-probabilities ──▶ PolicyLoss.token_loss ──▶ TokenLoss

A loss is its own configuration: a frozen pydantic model with a `kind`, one line of the union in
`loss`. Leaves out how tokens are weighted and summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """What the loss knows of each response token besides its current log-probability; all of shape
    (tokens,), fp32."""

    behaviour: Tensor  # log-probability under the engine that sampled it
    advantage: Tensor  # of its response
    weight: Tensor  # of its token loss in the sum
    reference: Tensor | None  # log-probability under the frozen reference; None without a KL term

    def take(self, indices: Tensor) -> TokenBatch:
        """The tokens with these indices."""
        return TokenBatch(
            behaviour=self.behaviour[indices],
            advantage=self.advantage[indices],
            weight=self.weight[indices],
            reference=None if self.reference is None else self.reference[indices],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """A loss per token, unweighted, and what explains it; all of shape (tokens,)."""

    loss: Tensor  # differentiable with respect to the log-probabilities
    importance: Tensor  # learner over engine, the importance weight before a bound is put on it
    truncated: Tensor  # bool: that weight was truncated
    clipped: Tensor  # bool: the clipped branch was the smaller one, no gradient


class PolicyLoss(Protocol):
    """What the learner asks of every kind of loss."""

    @property
    def kind(self) -> str:
        """Its name under `learner.loss.kind`."""
        ...

    @property
    def clips(self) -> bool:
        """Whether it may cut the gradient of a token, so that clipped tokens are worth
        counting."""
        ...

    def explain(self) -> str:
        """In words, what bounds the weight of a token."""
        ...

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        """The loss of each token; `logp` are the learner's log-probabilities, with gradient."""
        ...
