"""Group-local advantages: what a response's reward is worth among its siblings.

Local to the group on purpose: only such advantages can be computed while other groups are still
being generated (invariant 4, docs/architecture.md). Responses without a verdict (reward None)
neither enter the mean nor get an advantage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class GrpoAdvantage(BaseModel):
    """(r - mean) / (std + epsilon): every group speaks equally loud, whatever the spread of its
    rewards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["grpo"] = Field(
        default="grpo", description="Advantage by the group's mean and standard deviation."
    )
    epsilon: float = Field(
        default=1e-6, gt=0, description="Added to the standard deviation before dividing by it."
    )

    def of(self, rewards: Sequence[float]) -> list[float]:
        mean, deviation = _moments(rewards)
        return [(reward - mean) / (deviation + self.epsilon) for reward in rewards]


class DrGrpoAdvantage(BaseModel):
    """r - mean: without the division that favours questions that are nearly always or nearly never
    answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["dr_grpo"] = Field(
        default="dr_grpo", description="Advantage by the group's mean alone."
    )

    def of(self, rewards: Sequence[float]) -> list[float]:
        mean, _ = _moments(rewards)
        return [reward - mean for reward in rewards]


AdvantageConfig = Annotated[GrpoAdvantage | DrGrpoAdvantage, Field(discriminator="kind")]


def group_advantages(
    rewards: Sequence[float | None], advantage: GrpoAdvantage | DrGrpoAdvantage
) -> list[float | None]:
    """One advantage per response, None for those without a verdict.

    Exactly 0 for all of a group whose rewards agree or that has fewer than two verdicts: nothing to
    compare with.
    """
    verdicts = [reward for reward in rewards if reward is not None]
    if any(not math.isfinite(reward) for reward in verdicts):
        raise ValueError(
            f"rewards must be finite or None, got {list(rewards)}; let the reward return None"
            " (infra) instead"
        )
    if len(verdicts) < 2 or min(verdicts) == max(verdicts):
        return [None if reward is None else 0.0 for reward in rewards]
    values = iter(advantage.of(verdicts))
    return [None if reward is None else next(values) for reward in rewards]


def _moments(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation."""
    mean = math.fsum(rewards) / len(rewards)
    return mean, math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
