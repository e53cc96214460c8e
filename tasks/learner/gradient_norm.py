"""The norm of a gradient of any size, in double precision and without a copy of it."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 1 << 20  # elements; the double precision copy that torch makes of them stays in the cache


def squared_norm(gradient: Tensor) -> float:
    """Sum of the squares of all elements.

    Chunk by chunk: asked for the norm of the whole in another precision, torch on a CPU converts
    all of it first, into memory that is fresh every time.
    """
    norms = [
        torch.linalg.vector_norm(chunk, dtype=torch.float64)
        for chunk in torch.split(gradient, _CHUNK)
    ]
    return float(torch.stack(norms).square().sum().item())
