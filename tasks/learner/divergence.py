"""Estimates of the divergence of two policies from the tokens that one of them sampled.

With d = logp - reference, of tokens that the policy sampled, all estimate KL(policy || reference)
(J. Schulman, Approximating KL Divergence, 2020):

    k1 = d                  unbiased, of any sign, noisy
    k2 = d^2 / 2            biased, small, never negative
    k3 = exp(-d) + d - 1    unbiased, never negative; explodes where the reference is much likelier

As losses they differ otherwise: the gradient of k1 is zero on average, that of k2 is the gradient
of the divergence, that of k3 is so to first order (arXiv 2510.01555).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from tasks.learner.finite import LARGEST_LOG_RATIO, floored

Estimator = Literal["k1", "k2", "k3"]


def k1(logp: Tensor, reference: Tensor) -> Tensor:
    """Per token: the difference of log-probabilities."""
    return floored(logp) - floored(reference)


def k2(logp: Tensor, reference: Tensor) -> Tensor:
    """Per token: half the difference squared."""
    return k1(logp, reference).square() / 2


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """Per token: the difference with a term of mean zero that makes it non-negative."""
    difference = k1(reference, logp).clamp(max=LARGEST_LOG_RATIO)
    return torch.expm1(difference) - difference


ESTIMATORS: Mapping[Estimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
