"""The vocabulary projection: log-probabilities, their loss's gradient and both matrix gradients,
chunk by chunk.

The loss of a token depends on its own log-probability alone, so each chunk's gradient can be
finished while its logits are at hand: no logits are kept, none computed twice. One row of logits
serves all tokens that the same node predicts (the last prompt token predicts the first token of
every response). Leaves out the backbone: `grad_hidden` is where its backward starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_PER_CHUNK = 1024  # logits held at once: chunk x vocabulary, in the compute dtype
_CPU_ROWS_IN_CACHE = (
    16  # rows turned into probabilities together, so that fp32 copies stay in cache
)

LossGradient = Callable[[Tensor, Tensor], Tensor]
"""(indices of tokens, their log-probabilities) -> derivative of the loss sum by each
log-probability; all (tokens,) fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadResult:
    """P tokens predicted from R rows."""

    logp: Tensor  # (P,) fp32 log-probability of each token
    entropy: Tensor  # (P,) fp32 entropy of the distribution it was drawn from, nats
    grad_hidden: Tensor | None  # (R, hidden) in the compute dtype; None without a loss


@torch.no_grad()
def head_pass(
    hidden: Tensor,
    weight: Tensor,
    rows: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    loss_gradient: LossGradient | None = None,
    weight_grad: Tensor | None = None,
) -> HeadResult:
    """Log-probabilities of `targets` (P,) given `hidden` (R, hidden)[rows (P,)], under logits /
    temperature.

    With a loss gradient, adds the gradient of `weight` (V, hidden) to `weight_grad` (fp32) and
    returns that of `hidden`.
    """
    order = torch.argsort(rows, stable=True)
    edges = torch.arange(0, hidden.shape[0] + ROWS_PER_CHUNK, ROWS_PER_CHUNK, device=rows.device)
    bounds: list[int] = torch.searchsorted(rows[order], edges).tolist()
    logp, entropy = (
        torch.empty(rows.shape, dtype=torch.float32, device=hidden.device) for _ in range(2)
    )
    grad_hidden = torch.empty_like(hidden) if loss_gradient is not None else None
    for chunk, first_row in enumerate(range(0, hidden.shape[0], ROWS_PER_CHUNK)):
        inputs = hidden[first_row : first_row + ROWS_PER_CHUNK]
        tokens = order[bounds[chunk] : bounds[chunk + 1]]
        local, wanted = rows[tokens] - first_row, targets[tokens]
        logits = inputs @ weight.t()
        chosen, row_entropy = _to_probabilities(logits, local, wanted, temperature)
        logp[tokens], entropy[tokens] = chosen, row_entropy[local]
        if loss_gradient is None or grad_hidden is None:
            continue
        _to_logit_gradient(
            logits, local, wanted, chosen, loss_gradient(tokens, chosen) / temperature
        )
        grad_hidden[first_row : first_row + ROWS_PER_CHUNK] = logits @ weight
        if weight_grad is not None:
            weight_grad += logits.t() @ inputs
    return HeadResult(logp=logp, entropy=entropy, grad_hidden=grad_hidden)


def _to_probabilities(
    logits: Tensor, local: Tensor, wanted: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Turn logits (C, V) into probabilities in place; returns each wanted entry's log-probability,
    and row entropies."""
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
    probabilities: Tensor, local: Tensor, wanted: Tensor, logp: Tensor, derivative: Tensor
) -> None:
    """In place: entry (row, v) becomes sum over the row's tokens of derivative * ([token is v] -
    p_v).

    Chosen entries are recomputed in fp32: 1 - p of a nearly certain token does not survive bf16.
    """
    row_sums = derivative.new_zeros(probabilities.shape[0]).index_add_(0, local, derivative)
    probabilities.mul_(-row_sums[:, None].to(probabilities.dtype))
    _, same = torch.unique(local * probabilities.shape[1] + wanted, return_inverse=True)
    summed = torch.zeros_like(logp).index_add_(0, same, derivative)[same]
    probabilities[local, wanted] = (summed - logp.exp() * row_sums[local]).to(probabilities.dtype)
