"""The vocabulary projection, chunk by chunk: log-probabilities, the gradient of their loss by the
hidden states, and the gradient by the projection matrix.

Where a token's loss depends on its own log-probability alone, each chunk's gradient is finished
while its logits are in memory. Other losses compute the logits twice if there is more than one
chunk. One row of logits serves all tokens that the same node predicts. Leaves out the backbone:
`grad_hidden` is where its backward starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROWS_PER_CHUNK = 1024  # logits held at once: chunk x vocabulary, in the compute dtype
# rows turned into probabilities together, so that fp32 copies stay in cache
_CPU_ROWS_IN_CACHE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """P tokens, each of which is predicted from one of R rows of hidden states."""

    rows: Tensor  # (P,) int64: the row that predicts each token
    targets: Tensor  # (P,) int64: the tokens
    order: Tensor  # (P,) int64: indices of the tokens, sorted by their rows
    # (P,) int64: a number below P, the same for tokens with the same row and target
    twins: Tensor
    bounds: tuple[int, ...]  # where the tokens of each chunk of rows begin in `order`, and P


def prediction_arrays(
    rows: NDArray[np.int64], targets: NDArray[np.int64]
) -> tuple[Mapping[str, NDArray[np.int64]], tuple[int, ...]]:
    """Returns the arrays of `Predictions` by name, to be moved to a device, and the bounds. Here
    on the host, because a GPU would be waited for."""
    order = np.argsort(rows, kind="stable")
    num_rows = int(rows.max(initial=-1)) + 1
    edges = np.arange(0, num_rows + ROWS_PER_CHUNK, ROWS_PER_CHUNK)
    pairs = rows * (int(targets.max(initial=0)) + 1) + targets
    _, twins = np.unique(pairs, return_inverse=True)
    bounds = tuple(np.searchsorted(rows[order], edges).tolist())
    return {"rows": rows, "targets": targets, "order": order, "twins": twins}, bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGradient:
    """The derivatives of a loss sum by log-probabilities and by entropies."""

    # (indices of tokens, their log-probabilities) -> derivative by each log-probability
    by_logp: Callable[[Tensor, Tensor], Tensor]
    needs_all: bool = False  # by_logp is called once, with all tokens in order; else by chunk
    by_entropy: Tensor | None = None  # (P,) by the entropy at each token; None without such a term


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadResult:
    """The results for P tokens that are predicted from R rows of hidden states."""

    logp: Tensor  # (P,) fp32 log-probability of each token
    entropy: Tensor  # (P,) fp32 entropy of the distribution it was drawn from, nats
    grad_hidden: Tensor | None  # (R, hidden) in the compute dtype; None without a loss


@torch.no_grad()
def head_pass(
    hidden: Tensor,
    weight: Tensor,
    predictions: Predictions,
    temperature: float = 1.0,
    loss_gradient: LossGradient | None = None,
    weight_grad: Tensor | None = None,
) -> HeadResult:
    """Compute the log-probabilities of the tokens given `hidden` (R, hidden), under logits /
    temperature. With a loss gradient, also adds the gradient of `weight` (V, hidden) to
    `weight_grad` (fp32) and returns the gradient of `hidden`."""
    rows, targets = predictions.rows, predictions.targets
    logp, entropy = (
        torch.empty(rows.shape, dtype=torch.float32, device=hidden.device) for _ in range(2)
    )
    grad_hidden = torch.empty_like(hidden) if loss_gradient is not None else None
    every: Tensor | None = None  # derivative by each log-probability, where one call makes them all
    if loss_gradient is not None and loss_gradient.needs_all and len(hidden) > ROWS_PER_CHUNK:
        scored = head_pass(hidden, weight, predictions, temperature).logp
        every = _all_derivatives(loss_gradient, scored)
    for first_row, tokens in _chunks(predictions):
        inputs = hidden[first_row : first_row + ROWS_PER_CHUNK]
        local, wanted = rows[tokens] - first_row, targets[tokens]
        logits = inputs @ weight.t()
        chosen, row_entropy = _to_probabilities(logits, local, wanted, temperature)
        logp[tokens], entropy[tokens] = chosen, row_entropy[local]
        if loss_gradient is None or grad_hidden is None:
            continue
        if loss_gradient.needs_all and every is None:  # there is no other chunk
            every = _all_derivatives(loss_gradient, logp)
        by_logp = loss_gradient.by_logp(tokens, chosen) if every is None else every[tokens]
        by_entropy = loss_gradient.by_entropy
        bonus = None if by_entropy is None else (row_entropy, by_entropy[tokens] / temperature)
        summed = add_rows(torch.zeros_like(logp), predictions.twins[tokens], by_logp / temperature)
        _to_logit_gradient(
            logits,
            local,
            wanted,
            chosen,
            by_logp / temperature,
            summed[predictions.twins[tokens]],
            bonus,
        )
        grad_hidden[first_row : first_row + ROWS_PER_CHUNK] = logits @ weight
        if weight_grad is not None:
            weight_grad += logits.t() @ inputs
    return HeadResult(logp=logp, entropy=entropy, grad_hidden=grad_hidden)


def _all_derivatives(loss_gradient: LossGradient, logp: Tensor) -> Tensor:
    return loss_gradient.by_logp(torch.arange(logp.numel(), device=logp.device), logp)


def _chunks(predictions: Predictions) -> Iterator[tuple[int, Tensor]]:
    """The first row of each chunk, and the indices of the tokens that its rows predict."""
    for chunk, (start, end) in enumerate(pairwise(predictions.bounds)):
        yield chunk * ROWS_PER_CHUNK, predictions.order[start:end]


def _to_probabilities(
    logits: Tensor, local: Tensor, wanted: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """In place; returns each wanted entry's log-probability, and each row's entropy."""
    num_rows = logits.shape[0]
    step = num_rows if logits.is_cuda else _CPU_ROWS_IN_CACHE
    log_normaliser, entropy = (
        torch.empty(num_rows, dtype=torch.float32, device=logits.device) for _ in range(2)
    )
    raw = logits[local, wanted].float() / temperature
    for start in range(0, num_rows, step):
        part = logits[start : start + step]
        scaled = part.float() if temperature == 1.0 else part.float() / temperature
        log_normaliser[start : start + step] = scaled.logsumexp(-1)
        probabilities = (scaled - log_normaliser[start : start + step, None]).exp_()
        mean_logit = torch.linalg.vecdot(probabilities, scaled)
        entropy[start : start + step] = log_normaliser[start : start + step] - mean_logit
        part.copy_(probabilities)
    return raw - log_normaliser[local], entropy


def _to_logit_gradient(
    probabilities: Tensor,
    local: Tensor,
    wanted: Tensor,
    logp: Tensor,
    derivative: Tensor,
    summed: Tensor,
    bonus: tuple[Tensor, Tensor] | None,
) -> None:
    """In place: entry (row, v) becomes sum over the row's tokens of derivative * ([token is v] -
    p_v), and for a bonus (entropies of rows, derivatives by those of tokens) the sum of derivative
    * -p_v (log p_v + entropy) besides. summed: for each token, the derivatives of all that share
    its entry. Chosen entries are recomputed in fp32: 1 - p of a nearly certain token does not
    survive bf16."""
    num_rows = probabilities.shape[0]
    row_sums = add_rows(derivative.new_zeros(num_rows), local, derivative)
    by_entropy = torch.zeros_like(row_sums)
    if bonus is None:
        probabilities.mul_(-row_sums[:, None].to(probabilities.dtype))
    else:
        row_entropy, by_entropies = bonus
        add_rows(by_entropy, local, by_entropies)
        row_sums += by_entropy * row_entropy
        _add_entropies(probabilities, row_sums, by_entropy)
    row_terms = row_sums[local]
    if bonus is not None:
        row_terms = row_terms + by_entropy[local] * logp
    probabilities[local, wanted] = (summed - logp.exp() * row_terms).to(probabilities.dtype)


def add_rows(total: Tensor, rows: Tensor, values: Tensor, alpha: float = 1.0) -> Tensor:
    """In place: total[rows] += alpha * values, with the same bits at every call; returns `total`.

    On a GPU index_add_ adds in the order in which threads come; index_put_ sorts the rows first.
    """
    if not total.is_cuda:
        return total.index_add_(0, rows, values, alpha=alpha)
    return total.index_put_((rows,), values * alpha, accumulate=True)


def _add_entropies(probabilities: Tensor, row_sums: Tensor, by_entropy: Tensor) -> None:
    """In place: p_v becomes -p_v (row_sum + by_entropy log p_v)."""
    num_rows = probabilities.shape[0]
    step = num_rows if probabilities.is_cuda else _CPU_ROWS_IN_CACHE
    for start in range(0, num_rows, step):
        part = probabilities[start : start + step]
        exact = part.float()
        surprise = torch.special.entr(exact).mul_(by_entropy[start : start + step, None])
        part.copy_(surprise.sub_(exact.mul_(row_sums[start : start + step, None])))
