"""Longest first: synchronous steps whose responses wait for their turn, so that those that may take
longest do not begin last.

    turn ── the next P0 prompts x R0 responses ──▶ a few at a time (`longest_first`) ──▶ all trained
    under_way     how many: what the caches hold without preempting any
    moves_running divided rollouts (Seer): what runs goes on wherever there is less to do

The rivals that order a step instead of choosing within it: Seer goes by a prompt's first answer,
RhymeRL and SortedRL by what it took in an earlier epoch; both are known here once they are there.
On-policy, without a bias: every step trains exactly what it launches. Leaves out Seer's drafts from
the siblings of a response.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.scheduling.batch import BatchAlgebra, BatchConfig, round_shape, times
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.longest_first import LongestFirst
from tasks.scheduling.policies.base import DYNAMIC_SAMPLING, PlanningInputs
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.wait_for_all import WaitForAll

ORDERED = "ordered"


class LongestFirstConfig(BaseModel):
    """Synchronous steps that ask a few responses at a time, of long prompts first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["longest_first"] = Field(
        "longest_first",
        description=(
            "Synchronous steps whose responses wait for their turn, those of long prompts first."
        ),
    )
    under_way: float = Field(
        0.5,
        gt=0,
        le=1,
        description=(
            "Share of a step's responses that are asked at a time; 1 asks all at once, long prompts"
            " first: an engine begins what it is asked in that order."
        ),
    )
    moves_running: bool = Field(
        True,
        description="Move running responses to engines that have less to do (`balancing`).",
    )
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=DYNAMIC_SAMPLING)

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """One kind of round, which trains what it launches."""
        return BatchAlgebra(
            rounds=(round_shape(ORDERED, batch),),
            reserve_prompts=times(self.dynamic_sampling, batch.prompts_per_step),
            under_way=self.under_way,
            streaming_needs=(
                "a scheduling.kind that asks all of a round at once, got 'longest_first': what"
                " waits for its turn would find its engine gone"
            ),
        )

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """New prompts in every step, with what earlier epochs know of them."""
        plan = SyncConfig(dynamic_sampling=self.dynamic_sampling).plan_round(turn)
        if plan is None:
            return None
        known = turn.state.answer_tokens
        expected = tuple(known.get(ref.row, 0) for ref in plan.candidates)
        return replace(
            plan,
            kind=ORDERED,
            layout=ORDERED,
            expected_tokens=expected,
            balances=self.moves_running,
        )

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """Everything launched is waited for, and most of it waits itself."""
        num_responses = len(plan.prompts) * plan.launch_per_prompt
        return LongestFirst(WaitForAll(plan), plan, times(self.under_way, num_responses))
