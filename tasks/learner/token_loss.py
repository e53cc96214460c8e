"""The seam of a loss: one number per sampled token, from the log-probabilities around it.

    TokenBatch + current log-probabilities ──▶ PolicyLoss.token_loss ──▶ TokenLoss

A loss is its own configuration: a frozen pydantic model with a `kind`, one line of the union in
`loss`. Leaves out how tokens are weighted and summed, and what is added to the loss (`objective`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """What the loss knows of each sampled token besides its current log-probability; all of shape
    (tokens,), fp32."""

    behaviour: Tensor  # log-probability under the engine that sampled it, as it sampled it
    advantage: Tensor  # of its response, less the KL penalty that the token has to answer for
    reward: Tensor  # of its response, as training sees it
    weight: Tensor  # of its token loss in the sum
    num_tokens: Tensor  # sampled ones of its response
    reference: Tensor | None  # log-probability under the frozen reference; None without a KL term
    # mean over its response of the log-probabilities' difference learner - engine, held constant;
    # None where nothing asks for it (`needs_whole_responses`)
    mean_log_ratio: Tensor | None
    # log-probability under the learner as the step began with it; None in a step of one update,
    # where that is the current one
    proximal: Tensor | None = None

    def take(self, indices: Tensor) -> TokenBatch:
        """The tokens with these indices."""
        reference, ratio, proximal = self.reference, self.mean_log_ratio, self.proximal
        return TokenBatch(
            behaviour=self.behaviour[indices],
            advantage=self.advantage[indices],
            reward=self.reward[indices],
            weight=self.weight[indices],
            num_tokens=self.num_tokens[indices],
            reference=None if reference is None else reference[indices],
            mean_log_ratio=None if ratio is None else ratio[indices],
            proximal=None if proximal is None else proximal[indices],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """A loss per token, unweighted, and what explains it; all of shape (tokens,)."""

    loss: Tensor  # differentiable with respect to the log-probabilities
    truncated: Tensor  # bool: its importance weight was bounded, and it keeps a gradient
    clipped: Tensor  # bool: no gradient, because its ratio lies beyond a bound


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

    @property
    def corrects_staleness(self) -> bool:
        """Whether the sampler's log-probabilities weigh, clip or mask its tokens, so that tokens of
        older weights may be trained."""
        ...

    @property
    def needs_whole_responses(self) -> bool:
        """Whether a token's loss depends on the whole of its response (`mean_log_ratio`)."""
        ...

    def explain(self) -> str:
        """In words, what bounds the weight of a token."""
        ...

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        """The loss of each token; `logp` are the learner's log-probabilities, with gradient."""
        ...
