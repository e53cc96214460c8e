"""Synchronous steps without speculation: a step launches what it trains and waits for all of it.

turn ── the next P0 prompts of the stream x R0 responses ──▶ all accepted ──▶ trained
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from tasks.scheduling.batch import BatchAlgebra, BatchConfig, round_shape, times
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import (
    DYNAMIC_SAMPLING,
    REWARD_TIMING,
    STREAMING_NEEDS_VERDICTS,
    PlanningInputs,
    RewardTiming,
    queue_round,
)
from tasks.scheduling.wait_for_all import WaitForAll

SYNC = "sync"


class SyncConfig(FrozenConfig):
    """Every step launches exactly what it trains and waits for all of it."""

    kind: Literal["sync"] = Field("sync", description="Synchronous steps without speculation.")
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=DYNAMIC_SAMPLING)
    reward_timing: RewardTiming = Field("per_response", description=REWARD_TIMING)

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """The counts of the one kind of round, which launches exactly what it trains."""
        is_timed_last = self.reward_timing == "after_rollout"
        return BatchAlgebra(
            rounds=(round_shape(SYNC, batch),),
            reserve_prompts=times(self.dynamic_sampling, batch.prompts_per_step),
            scores_last=is_timed_last,
            streaming_needs=STREAMING_NEEDS_VERDICTS if is_timed_last else "",
        )

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """A round over new prompts; None after the last planned step, because no prompt waits."""
        if turn.is_after_last:
            return None
        algebra = self.algebra(turn.batch)
        return queue_round(turn, algebra.ordinary, algebra)

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """The scheduler of a round, which waits for every launched response."""
        return WaitForAll(plan)
