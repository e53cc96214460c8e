"""Importance weights: how much likelier the learner finds what the engine sampled.

    u = exp(learner - engine) of a token          level token
    the product of u over its response            level sequence
    the geometric mean of u over its response     level geometric

The product is the exact weight of a response, and a trap: a factor of 1.1 at every token makes a
weight of 1.1^100 = 13,780 over a hundred of them, so that under any bound short responses keep
their weights and long ones have 0 or the bound. The geometric mean has no such trend with the
length; it is the exact weight of nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from tasks.learner.finite import bounded_exp, ratio
from tasks.learner.token_loss import TokenBatch

Level = Annotated[
    Literal["token", "sequence", "geometric"],
    Field(
        description=(
            "Whose ratio learner/engine the weight is: the token's own, the product over its"
            " response (sequence; explodes or vanishes with the length) or their geometric mean."
        )
    ),
]


def importance(logp: Tensor, batch: TokenBatch, level: Level) -> Tensor:
    """The weight of each token at this level, before any bound of the loss, held constant."""
    if level == "token":
        return ratio(logp.detach(), batch.behaviour)
    assert batch.mean_log_ratio is not None, "levels above the token need whole responses"
    if level == "geometric":
        return bounded_exp(batch.mean_log_ratio)
    return bounded_exp(batch.mean_log_ratio * batch.num_tokens)
