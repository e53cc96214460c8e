"""PPO's clip: of two surrogates the one that promises less."""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.learner.finite import finite


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """min(ratio A, clip(ratio, 1 - low, 1 + high) A) of each token, and where the clip decided, so
    that nothing is left of the gradient."""
    plain = finite(ratio * advantage, ratio)
    bounded = finite(ratio.clamp(1 - low, 1 + high) * advantage, ratio)
    return torch.minimum(plain, bounded), (bounded < plain).detach()
