"""Muon: momentum whose matrices are made orthogonal before they are applied.

torch.optim.Muon iterates in bfloat16. A processor without instructions for it (AVX2 alone) emulates
those products: a warm-up of less than a minute takes more than four. This one iterates in float32
and is otherwise the same.

Source: https://kellerjordan.github.io/posts/muon/
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, those of torch.optim.Muon
NUM_ITERATIONS = 5
EPSILON = 1e-7


class Muon(torch.optim.Optimizer):
    """With Nesterov's momentum and without weight decay. Raises ValueError for a parameter that is
    no matrix."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float) -> None:
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum})
        for parameter in self._parameters():
            if parameter.ndim != 2:
                raise ValueError(
                    f"Muon's parameters must be matrices, got one of shape {list(parameter.shape)};"
                    " give the others to AdamW"
                )

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    momentum = self._momentum(parameter, group["momentum"])
                    update = parameter.grad.lerp(momentum, group["momentum"])
                    rows, columns = parameter.shape
                    lr = group["lr"] * max(1.0, rows / columns) ** 0.5
                    parameter.add_(orthogonal(update), alpha=-lr)

    def _momentum(self, parameter: Tensor, share: float) -> Tensor:
        """The running mean of the gradients, with this one in it."""
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"].lerp_(parameter.grad, 1.0 - share)
        return momentum


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest matrix whose singular values are one (here 0.7 to 1.2), of the same shape,
    by Newton's and Schulz's iteration."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=EPSILON)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.T if is_tall else x
    return result
