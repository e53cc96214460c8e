"""Ratios and products of single tokens that stay finite in single precision, however far two
policies are apart: exp(88.8) is infinite, and 0 times infinity is no number, nor is its gradient.

What is finite without these bounds has the very same bits with them; beyond them a token has a
finite loss, and a gradient only where it comes from something else. A record without a finite
log-probability is another matter: its ratio stays infinite, and what counts it is no number.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_LOG_RATIO = 88.0  # float32 ends between exp(88) and exp(89)
LEAST_LOGP = -1e6  # in the place of -inf, of a token that a policy never samples
LARGEST_WEIGHT = 1e30  # of a log-probability in a loss
LARGEST_PENALTY = 1e12  # on the reward of a token: squares of its sums are finite


def floored(logp: Tensor) -> Tensor:
    """Log-probabilities, -inf as the least of them and without a gradient."""
    return logp.clamp(min=LEAST_LOGP)


def bounded_exp(exponent: Tensor) -> Tensor:
    """exp, for finite exponents of LARGEST_LOG_RATIO at most; beyond it without a gradient."""
    bounded = torch.exp(exponent.clamp(max=LARGEST_LOG_RATIO))
    return bounded.masked_fill(exponent == math.inf, math.inf)


def ratio(logp: Tensor, other: Tensor) -> Tensor:
    """How much likelier one policy finds a token than another one, which sampled it."""
    return bounded_exp(floored(logp) - other)


def finite(values: Tensor, given: Tensor) -> Tensor:
    """Values; those of finite given ones are no larger than their type can hold, and have no
    gradient there."""
    largest = torch.finfo(values.dtype).max
    return torch.where(given.isfinite(), values.clamp(-largest, largest), values)


def weighted_logp(weight: Tensor, logp: Tensor) -> Tensor:
    """-weight * logp, the loss whose gradient is the constant weight."""
    return -weight.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT) * floored(logp)
