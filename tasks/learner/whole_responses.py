"""Quantities of whole responses, from the values of their tokens.

Its tokens are those that the model sampled, one after the other, whatever was given between them. A
response lies in one packed row (`packing`), so that nothing here crosses micro-batches or ranks.
Sums are made in fp64 on the host, response by response: the same whatever the device and whoever
shares the row.
"""

from __future__ import annotations

import torch
from torch import Tensor

# sampled tokens of each response of a row, in the order of the row's tokens
Lengths = tuple[int, ...]


def means(values: Tensor, lengths: Lengths) -> Tensor:
    """(tokens,) -> (responses,): the mean of each response, fp64 on the host."""
    return torch.stack([part.mean() for part in _parts(values, lengths)])


def sums_to_go(values: Tensor, lengths: Lengths) -> Tensor:
    """(tokens,) -> (tokens,): each token's value and those that follow it in its response."""
    sums = [part.flip(0).cumsum(0).flip(0) for part in _parts(values, lengths)]
    return torch.cat(sums).to(values)


def spread(values: Tensor, lengths: Lengths, device: torch.device) -> Tensor:
    """(responses,) -> (tokens,): each response's value on all of its tokens."""
    return values.repeat_interleave(torch.tensor(lengths)).to(device)


def _parts(values: Tensor, lengths: Lengths) -> tuple[Tensor, ...]:
    return torch.split(values.detach().double().cpu(), list(lengths))
