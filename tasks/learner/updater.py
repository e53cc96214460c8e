"""One optimizer update: gradients reduced over the ranks, divided once, clipped, applied.

Leaves out where the gradients come from (trainer, several_updates).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from torch import Tensor

from tasks.learner.gradient_norm import squared_norm
from tasks.learner.parameters import TrainedParameters
from tasks.learner.ranks import Ranks
from tasks.learner.reports import MadeUpdate, skip_reason
from tasks.learner.sharding import ShardedAdamW


class Updater:
    """Moves trained parameters by the sums of their gradients."""

    def __init__(
        self,
        max_grad_norm: float,
        parameters: TrainedParameters,
        optimizer: ShardedAdamW,
        ranks: Ranks,
    ) -> None:
        """The optimizer is that of the parameters' pieces."""
        self._max_grad_norm, self._ranks = max_grad_norm, ranks
        self._parameters, self._optimizer = parameters, optimizer

    def make(self, normaliser: float, loss_sum: float, rate: float) -> MadeUpdate:
        """Apply what was accumulated, given this rank's divisor and loss, unless `skip_reason` has
        a reason; the gradients are zero afterwards. Collective."""
        started = time.time()
        normaliser, loss_sum = self._ranks.sum([normaliser, loss_sum])
        loss = loss_sum / normaliser if normaliser else 0.0
        gradients, grad_norm = self._reduced(normaliser)
        skipped = skip_reason(normaliser, loss, grad_norm)
        if skipped is None:
            self._apply(gradients, grad_norm, rate)
        self._parameters.discard()
        return MadeUpdate(
            skipped=skipped,
            normaliser=normaliser,
            loss=loss,
            grad_norm=grad_norm,
            busy=(started, time.time()),
        )

    def _reduced(self, normaliser: float) -> tuple[list[Tensor], float]:
        """The gradients of what this rank owns, after the division, and the norm of all."""
        gradients = self._parameters.reduced()
        for gradient in gradients:
            gradient.div_(normaliser or 1.0)
        squares = sum(squared_norm(gradient) for gradient in gradients)
        return gradients, math.sqrt(self._ranks.sum([squares])[0])

    def _apply(self, gradients: Sequence[Tensor], norm: float, rate: float) -> None:
        if norm > self._max_grad_norm:
            for gradient in gradients:
                gradient.mul_(self._max_grad_norm / norm)
        self._optimizer.step(gradients, rate)
        self._parameters.publish()
