"""Tail batching (RollPacker, section 4.1): short rounds that keep the first to finish, long rounds
over the prompts that they gave up on.

    P0 prompts in the long-prompt queue ──▶ long round: the head of the queue, all waited for
    fewer ──▶ short round: eta_P*P0 new prompts x eta_R*R0 responses, the first P0 x R0 are kept
    steps over ──▶ drain: what is left in the queue, in rounds of about the same size

`short_round` has the rules by which a short round chooses, with verdicts or without (`ScoredLast`).
Long rounds and drains choose nothing: they wait for all that they launch (`wait_for_all`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from tasks.scheduling.batch import BatchAlgebra, BatchConfig, round_shape, times
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import (
    DYNAMIC_SAMPLING,
    LONG,
    RESPONSE_OVERPROVISION,
    REWARD_TIMING,
    SHORT,
    STREAMING_NEEDS_VERDICTS,
    PlanningInputs,
    RewardTiming,
    drain_round,
    queue_round,
)
from tasks.scheduling.short_round import ScoredLast, ShortRoundScheduler
from tasks.scheduling.wait_for_all import WaitForAll


class TailBatchingConfig(FrozenConfig):
    """Short rounds that launch more than they keep, long rounds over the prompts that these gave up
    on."""

    kind: Literal["tail_batching"] = Field(
        "tail_batching", description="RollPacker's short and long rounds."
    )
    prompt_overprovision: float = Field(
        1.25,
        ge=1,
        le=4,
        description=(
            "Prompts a short round launches per prompt it keeps; 1 means that no prompt is ever"
            " deferred."
        ),
    )
    response_overprovision: float = Field(1.0, ge=1, le=4, description=RESPONSE_OVERPROVISION)
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=DYNAMIC_SAMPLING)
    reward_timing: RewardTiming = Field(
        "per_response",
        description=(
            f"{REWARD_TIMING} A short round then keeps the first to be generated, where it"
            " otherwise keeps the first to be scored."
        ),
    )
    drain: bool = Field(
        True,
        description=(
            "Train what is left in the long-prompt queue in extra steps after the last planned one."
        ),
    )

    @model_validator(mode="after")
    def _speculates(self) -> Self:
        if self.prompt_overprovision == 1 and self.response_overprovision == 1:
            raise ValueError(
                "tail batching must over-provision prompts or responses, got 1.0 for both; raise"
                " one or use kind 'sync'"
            )
        return self

    @model_validator(mode="after")
    def _filters_by_verdicts(self) -> Self:
        if self._scores_last and self.dynamic_sampling:
            raise ValueError(
                "dynamic_sampling must be 0 where tail batching scores after the rollout, got"
                f" {self.dynamic_sampling:g}; leave it out, or set scheduling.reward_timing to"
                " 'per_response'"
            )
        return self

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """The counts of short and long rounds, of which there are 1/(eta_P - 1) short ones for each
        long one; short ones alone if no prompt is ever deferred."""
        num_launched = times(self.prompt_overprovision, batch.prompts_per_step)
        num_deferred = num_launched - batch.prompts_per_step
        short = round_shape(
            SHORT,
            batch,
            prompt_overprovision=self.prompt_overprovision,
            response_overprovision=self.response_overprovision,
            frequency=batch.prompts_per_step / num_deferred if num_deferred else 1.0,
        )
        # P0 - 1 prompts before the last short round, and those that it defers
        longest_queue = num_launched - 1 if num_deferred else 0
        return BatchAlgebra(
            rounds=(short, round_shape(LONG, batch)) if num_deferred else (short,),
            reserve_prompts=times(self.dynamic_sampling, batch.prompts_per_step),
            max_drain_steps=math.ceil(longest_queue / short.accept_prompts) if self.drain else 0,
            scores_last=self._scores_last,
            streaming_needs=STREAMING_NEEDS_VERDICTS if self._scores_last else "",
        )

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """A long round once the queue can fill one, else a short one; at the end a drain."""
        if turn.is_after_last:
            plan = drain_round(turn, turn.state.queue if self.drain else ())
            return replace(plan, scores_last=self._scores_last) if plan is not None else None
        algebra = self.algebra(turn.batch)
        waiting = turn.state.queue[: turn.batch.prompts_per_step]
        if len(waiting) == turn.batch.prompts_per_step:
            return queue_round(turn, round_shape(LONG, turn.batch), algebra, waiting)
        return queue_round(turn, algebra.ordinary, algebra, chooses=True)

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """The scheduler of a round, which chooses in a short round and else waits for all."""
        if plan.kind != SHORT:
            return WaitForAll(plan)
        choosing = ShortRoundScheduler(plan)
        return ScoredLast(choosing, plan) if plan.scores_last else choosing

    @property
    def _scores_last(self) -> bool:
        return self.reward_timing == "after_rollout"
