"""The interface of a loss: one number per sampled token, from the token's log-probabilities.

    TokenBatch + current log-probabilities ──▶ PolicyLoss.token_loss ──▶ TokenLoss

Beside it what losses are made of: importance weights, how much likelier the learner finds a token
than the engine did,

    u = exp(learner - engine) of a token          level token
    the product of u over its response            level sequence: the exact weight; it explodes
    the geometric mean of u over its response     level geometric: no trend with length, inexact

and sums over whole responses, in fp64 on the host: the same whatever the device and whichever
responses share the row. A response lies in one row (`packing`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from tasks.learner.log_ratios import bounded_exp, ratio

if TYPE_CHECKING:  # configurations are read without torch
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The sampled tokens of a loss, without current log-probabilities; (tokens,) fp32."""

    sampling_logp: Tensor  # log-probability that the engine reported when it sampled the token
    advantage: Tensor  # the token's advantage, less the KL penalty that it is charged with
    reward: Tensor  # of its response, after overlong shaping
    weight: Tensor  # weight of the token's loss in the sum
    num_tokens: Tensor  # number of sampled tokens of its response
    reference: Tensor | None  # log-probability under the frozen reference; None without a KL term
    # mean over its response of the log-probabilities' difference learner - engine, held constant;
    # None where nothing asks for it (`needs_whole_responses`)
    mean_log_ratio: Tensor | None
    # log-probability under the learner as the step began with it; None in a step of one update,
    # where that is the current one
    proximal: Tensor | None = None

    def take(self, indices: Tensor) -> TokenBatch:
        """The batch of the tokens with these indices."""
        taken: dict[str, Any] = {}  # Any: a tensor, or None where the batch has none
        for each in fields(self):
            values = getattr(self, each.name)
            taken[each.name] = None if values is None else values[indices]
        return TokenBatch(**taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Each token's unweighted loss, and why its gradient is bounded or zero; all (tokens,)."""

    loss: Tensor  # differentiable with respect to the log-probabilities
    truncated: Tensor  # bool: its importance weight was bounded, and it keeps a gradient
    clipped: Tensor  # bool: no gradient, because its ratio lies beyond a bound


class PolicyLoss(FrozenConfig):
    """The base of every kind of loss: its settings, with a field `kind`, and its values."""

    @property
    def corrects_staleness(self) -> bool:
        """True if the sampling log-probabilities weigh, clip or mask tokens, so that tokens of
        older weights may be trained."""
        return True

    @property
    def clips(self) -> bool:
        """True if it may zero a token's gradient in a step of one update; such are counted."""
        return False

    @property
    def needs_whole_responses(self) -> bool:
        """True if a token's loss depends on the whole of its response (`mean_log_ratio`)."""
        return False

    def explain(self) -> str:
        """Describe in words what bounds the weight of a token: the first line of the docstring,
        unless a kind knows better."""
        return (type(self).__doc__ or "").strip().partition("\n")[0]

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        """The loss of each token, by the learner's log-probabilities (tokens,), with gradient."""
        raise NotImplementedError


# sampled tokens of each response of a row, in the order of the row's tokens
Lengths = tuple[int, ...]


def means(values: Tensor, lengths: Lengths) -> Tensor:
    """(tokens,) -> (responses,): the mean of each response, fp64 on the host."""
    import torch

    return torch.stack([part.mean() for part in _parts(values, lengths)])


def sums_to_go(values: Tensor, lengths: Lengths) -> Tensor:
    """(tokens,) -> (tokens,): the sum of each token's value and those after it in its response."""
    import torch

    sums = [part.flip(0).cumsum(0).flip(0) for part in _parts(values, lengths)]
    return torch.cat(sums).to(values)


def spread(values: Tensor, lengths: Lengths, device: torch.device) -> Tensor:
    """(responses,) -> (tokens,): repeat each response's value on all of its tokens."""
    import torch

    return values.repeat_interleave(torch.tensor(lengths)).to(device)


def _parts(values: Tensor, lengths: Lengths) -> tuple[Tensor, ...]:
    import torch

    return torch.split(values.detach().double().cpu(), list(lengths))


Level = Annotated[
    Literal["token", "sequence", "geometric"],
    Field(
        description=(
            "Whose ratio learner/engine the weight is: the token's own, the product over its"
            " response (sequence; explodes or vanishes with the length) or their geometric mean."
        )
    ),
]


def importance(logp: Tensor, batch: TokenBatch, level: Level) -> Tensor:
    """The constant importance weight of each token at this level, before any bound."""
    if level == "token":
        return ratio(logp.detach(), batch.sampling_logp)
    assert batch.mean_log_ratio is not None, "levels above the token need whole responses"
    if level == "geometric":
        return bounded_exp(batch.mean_log_ratio)
    return bounded_exp(batch.mean_log_ratio * batch.num_tokens)
