"""One optimizer update: gradients are reduced over the ranks, divided once, clipped, and applied by
AdamW, on every rank to the pieces that it owns. Leaves out when to update (`trainer`,
`several_updates`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from tasks.learner.learner_config import AdamWConfig
from tasks.learner.parameters import Piece, TrainedParameters
from tasks.learner.ranks import Ranks
from tasks.learner.reports import MadeUpdate, skip_reason


class ShardedAdamW:
    """AdamW on the pieces that this rank owns, with their fp32 moments."""

    def __init__(self, config: AdamWConfig, pieces: Sequence[Piece]) -> None:
        self._config, self.pieces = config, tuple(pieces)
        self.mean = [torch.zeros_like(piece.masters) for piece in self.pieces]
        self.square = [torch.zeros_like(piece.masters) for piece in self.pieces]
        self.num_updates = 0

    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Update every piece with its gradient, at this learning rate."""
        self.num_updates += 1
        for matrices in (True, False):
            places = [
                place for place, piece in enumerate(self.pieces) if piece.is_matrix == matrices
            ]
            if not places:
                continue
            device = self.pieces[places[0]].masters.device
            made = torch.full((len(places),), float(self.num_updates - 1), device=device)
            adamw(
                [self.pieces[place].masters for place in places],
                [gradients[place] for place in places],
                [self.mean[place] for place in places],
                [self.square[place] for place in places],
                [],
                [*made.unbind()],
                fused=True,
                amsgrad=False,
                beta1=self._config.beta1,
                beta2=self._config.beta2,
                lr=rate,
                weight_decay=self._config.weight_decay if matrices else 0.0,
                eps=self._config.epsilon,
                maximize=False,
            )


_CHUNK = 1 << 20  # elements; torch's double precision copy of a chunk stays in the cache


def squared_norm(gradient: Tensor) -> Tensor:
    """The sum of the squares of all elements, a fp64 scalar. In chunks: for a norm in another
    precision, torch on a CPU first converts all of the tensor, into new memory every time."""
    norms = [
        torch.linalg.vector_norm(chunk, dtype=torch.float64)
        for chunk in torch.split(gradient, _CHUNK)
    ]
    return torch.stack(norms).square().sum()


class Updater:
    """Updates trained parameters by their accumulated gradients."""

    def __init__(self, config: AdamWConfig, parameters: TrainedParameters, ranks: Ranks) -> None:
        self._config, self.parameters, self.ranks = config, parameters, ranks
        self.optimizer = ShardedAdamW(config, parameters.pieces)

    def make(self, step: int, normaliser: float, loss_sum: float) -> MadeUpdate:
        """Apply the accumulated gradients at the learning rate of the step, unless `skip_reason`
        gives a reason not to; the gradients are zero afterwards. normaliser, loss_sum: this rank's,
        summed over the ranks here. Collective."""
        started, bound = time.time(), self._config.max_grad_norm
        normaliser, loss_sum = self.ranks.sum([normaliser, loss_sum])
        loss = loss_sum / normaliser if normaliser else 0.0
        gradients = self.parameters.reduced()
        for gradient in gradients:
            gradient.div_(normaliser or 1.0)
        norms = [squared_norm(gradient) for gradient in gradients]
        squares = sum(torch.stack(norms).tolist()) if norms else 0.0  # in one read
        grad_norm = math.sqrt(self.ranks.sum([squares])[0])
        skipped = skip_reason(normaliser, loss, grad_norm)
        if skipped is None:
            if grad_norm > bound:
                for gradient in gradients:
                    gradient.mul_(bound / grad_norm)
            self.optimizer.step(gradients, self._config.rate(step))
            self.parameters.publish()
        self.parameters.discard()
        return MadeUpdate(
            skipped=skipped,
            normaliser=normaliser,
            loss=loss,
            grad_norm=grad_norm,
            busy=(started, time.time()),
        )
