"""Ratios and divergences of two policies at single tokens, finite however far apart they are.

exp(88.8) is infinite in single precision, and 0 times infinity is not a number. The bounds here
leave numbers within them unchanged, bit by bit; beyond them a token has a finite loss, and a
gradient only from its other terms. A record without a finite log-probability keeps an infinite
ratio. Three estimators of KL(policy || reference) for tokens that the policy sampled, with
d = logp - reference (J. Schulman, Approximating KL Divergence, 2020):

    k1 = d                  unbiased, of any sign, noisy; its gradient is zero on average
    k2 = d^2 / 2            biased, small, never negative; its gradient is the divergence's
    k3 = exp(-d) + d - 1    unbiased, never negative; explodes where the reference is much likelier

(Of the gradients: arXiv 2510.01555; that of k3 is the divergence's to first order.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # configurations are read without torch
    from torch import Tensor


LARGEST_LOG_RATIO = 88.0  # float32 ends between exp(88) and exp(89)
LEAST_LOGP = -1e6  # in the place of -inf, of a token that a policy never samples
LARGEST_WEIGHT = 1e30  # of a log-probability in a loss
LARGEST_PENALTY = 1e12  # on the reward of a token: squares of its sums are finite


def floored(logp: Tensor) -> Tensor:
    """Put LEAST_LOGP, without a gradient, in the place of lower values and -inf."""
    return logp.clamp(min=LEAST_LOGP)


def bounded_exp(exponent: Tensor) -> Tensor:
    """exp, bounded by LARGEST_LOG_RATIO without a gradient beyond; infinite for infinity."""
    import torch

    bounded = torch.exp(exponent.clamp(max=LARGEST_LOG_RATIO))
    return bounded.masked_fill(exponent == math.inf, math.inf)


def ratio(logp: Tensor, other: Tensor) -> Tensor:
    """The probability of each token under one policy over that under another, which sampled it."""
    return bounded_exp(floored(logp) - other)


def finite(values: Tensor, given: Tensor) -> Tensor:
    """Clamp values to their type's range where `given` is finite, without a gradient beyond."""
    import torch

    largest = torch.finfo(values.dtype).max
    return torch.where(given.isfinite(), values.clamp(-largest, largest), values)


def weighted_logp(weight: Tensor, logp: Tensor) -> Tensor:
    """-weight * logp, the loss whose gradient is the constant weight."""
    return -weight.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT) * floored(logp)


Estimator = Literal["k1", "k2", "k3"]


def k1(logp: Tensor, reference: Tensor) -> Tensor:
    """Per token: the difference of log-probabilities, logp - reference."""
    return floored(logp) - floored(reference)


def k2(logp: Tensor, reference: Tensor) -> Tensor:
    """Per token: half the squared difference of log-probabilities."""
    return k1(logp, reference).square() / 2


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """Per token: exp(-d) + d - 1 with d = logp - reference, which is never negative."""
    import torch

    difference = k1(reference, logp).clamp(max=LARGEST_LOG_RATIO)
    return torch.expm1(difference) - difference


ESTIMATORS: Mapping[Estimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
