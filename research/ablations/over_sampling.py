"""Over-sampling that discards: what most systems do about a tail, to compare with.

    turn ── eta_P*P0 new prompts x R0 responses ──▶ the first P0 to finish are trained
                                                └─▶ the others are dropped, for good

A short round of tail batching without the long-prompt queue, so that nothing ever waits for a long
answer. It is length-biased: what is dropped is what takes longest, and no later step asks it again.
Of the prompts that are drawn, 1 - 1/eta_P are trained in no step of the epoch; they are counted as
dropped late. Every domain keeps its share, as in a short round, so that the bias is within domains.
Leaves out response over-provisioning, whose bias is of another kind.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.scheduling.batch import BatchAlgebra, BatchConfig, round_shape, times
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import DYNAMIC_SAMPLING, PlanningInputs, queue_round
from tasks.scheduling.short_round import ShortRoundScheduler

OVERSAMPLED = "oversampled"


class OverSamplingConfig(BaseModel):
    """Rounds that launch more prompts than they train, and drop those that finish last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["over_sampling"] = Field(
        "over_sampling",
        description=(
            "Over-sampling that discards: prompts with long answers are dropped untrained, which"
            " favours short ones; to compare with."
        ),
    )
    prompt_overprovision: float = Field(
        1.25,
        gt=1,
        le=4,
        description="Prompts that a round launches per prompt it trains; the others are lost.",
    )
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=DYNAMIC_SAMPLING)

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """One kind of round, which loses what it launches beyond a step."""
        shape = round_shape(OVERSAMPLED, batch, prompt_overprovision=self.prompt_overprovision)
        return BatchAlgebra(
            rounds=(shape,),
            reserve_prompts=times(self.dynamic_sampling, batch.prompts_per_step),
            dropped_prompts=shape.launch_prompts - shape.accept_prompts,
        )

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """New prompts in every step; nothing is left after the last."""
        if turn.is_after_last:
            return None
        algebra = self.algebra(turn.batch)
        return queue_round(turn, algebra.ordinary, algebra, chooses=True)

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """The first to finish are kept; nothing is put off."""
        return ShortRoundScheduler(plan, late="dropped")
