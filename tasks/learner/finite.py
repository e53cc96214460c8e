"""Ratios and products of single tokens that stay finite in single precision, however far two
policies are apart: exp(88.8) is infinite, and 0 times infinity is no number, nor is its gradient.

What is finite without these bounds has the very same bits with them; beyond them a token has a
finite loss, and a gradient only where it comes from something else.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_LOG_RATIO = 88.0  # float32 ends between exp(88) and exp(89)
LEAST_LOGP = -1e6  # in the place of -inf, of a token that a policy never samples
LARGEST_WEIGHT = 1e30  # of a log-probability in a loss
LARGEST_PENALTY = 1e12  # on the reward of a token: squares of its sums are finite


def floored(logp: Tensor) -> Tensor:
    """Log-probabilities, -inf as the least of them and without a gradient."""
    return logp.clamp(min=LEAST_LOGP)


def log_ratio(logp: Tensor, other: Tensor) -> Tensor:
    """The difference of log-probabilities, 0 where both policies never sample the token."""
    return floored(logp) - floored(other)


def bounded_exp(exponent: Tensor) -> Tensor:
    """exp, of LARGEST_LOG_RATIO at most; beyond it without a gradient."""
    return torch.exp(exponent.clamp(max=LARGEST_LOG_RATIO))


def ratio(logp: Tensor, other: Tensor) -> Tensor:
    """How much likelier one policy finds a token than another one."""
    return bounded_exp(log_ratio(logp, other))


def finite(values: Tensor) -> Tensor:
    """Values, infinities as the largest number of their type and without a gradient."""
    largest = torch.finfo(values.dtype).max
    return values.clamp(-largest, largest)


def weighted_logp(weight: Tensor, logp: Tensor) -> Tensor:
    """-weight * logp, the loss whose gradient is the constant weight."""
    return -weight.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT) * floored(logp)
