"""The sequence gate: responses that drifted too far from the policy are dropped whole.

Composes with any loss. A dropped response has no policy gradient and stays in the divisor, as one
whose advantage is zero. Its KL term and entropy bonus stay: they carry no importance weight.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.learner.divergence import ESTIMATORS, k1
from tasks.learner.whole_responses import Lengths, means


class NoSequenceMask(BaseModel):
    """Every response is trained, however far it drifted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["open"] = Field(default="open", description="Drops no response.")
    drops: ClassVar[bool] = False

    def explain(self) -> str:
        return "no response is dropped"

    def dropped(
        self, logp: Tensor, behaviour: Tensor, advantage: Tensor, lengths: Lengths
    ) -> Tensor:
        """None of the responses."""
        return torch.zeros(len(lengths), dtype=torch.bool)


class DriftMask(BaseModel):
    """Drops a response whose mean drift, over its tokens, exceeds the bound. Drift estimates
    KL(engine || learner), by d = engine - learner log-probability.

    `k1`, the mean of d, with negative_only is off-policy sequence masking (DeepSeek-V3.2, arXiv
    2512.02556; slime); `geometric`, |mean of d|, is geometric rejection sampling (verl); `k2` and
    `k3` never cancel over a response.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["drift"] = Field(
        default="drift", description="Drops responses that the policy has drifted away from."
    )
    statistic: Literal["k1", "geometric", "k2", "k3"] = Field(
        default="k3",
        description=(
            "Measure of drift, a mean over tokens: of engine - learner log-probability (k1; its"
            " absolute value: geometric), of half its square (k2), of the k3 estimate of their KL."
        ),
    )
    bound: float = Field(default=0.01, gt=0, description="Responses that drifted more are dropped.")
    negative_only: bool = Field(
        default=False, description="Drop only responses with a negative advantage."
    )
    drops: ClassVar[bool] = True

    def explain(self) -> str:
        which = "with a negative advantage " if self.negative_only else ""
        return f"responses {which}are dropped above {self.bound:g} of {self.statistic} drift"

    def dropped(
        self, logp: Tensor, behaviour: Tensor, advantage: Tensor, lengths: Lengths
    ) -> Tensor:
        """Which responses are dropped, (responses,) bool on the host; the rest are (tokens,)."""
        if self.statistic == "geometric":
            drift = means(k1(behaviour, logp), lengths).abs()
        else:
            drift = means(ESTIMATORS[self.statistic](behaviour, logp), lengths)
        is_far = ~(drift <= self.bound)  # and what is no number
        return is_far & (means(advantage, lengths) < 0) if self.negative_only else is_far


Gate = NoSequenceMask | DriftMask
ALL_PASS = NoSequenceMask()
SequenceMaskConfig = Annotated[Gate, Field(discriminator="kind")]
