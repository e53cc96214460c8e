"""Estimates of the divergence of two policies from the tokens that one of them sampled."""

from __future__ import annotations

import torch
from torch import Tensor


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """Unbiased, non-negative estimate of KL(policy || reference) per token: exp(d) - d - 1 with
    d = reference - logp.
    """
    difference = reference - logp
    return torch.expm1(difference) - difference
