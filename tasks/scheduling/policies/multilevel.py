"""Tail batching with more than one long-prompt queue: prompts that are long even among long ones
are deferred again.

    level 0, new prompts      ──▶ eta_P*P0 asked, the first P0 kept ─┐ the rest is deferred
    level 1, deferred once    ──▶ as soon as there are eta_P*P0: the first P0 kept ─┐ the rest
    last level                ──▶ as soon as there are P0: all waited for
    steps over                ──▶ drain: what is left, in rounds of about the same size

A round waits for its slowest prompt, so that prompts that take about as long should share one; a
prompt that was given up once is among the longest fifth, twice among the longest twenty-fifth. With
the defaults one round in 25 waits for responses up to the bound, in tail batching one in five. The
price is the tokens of prompts that are given up more than once. Leaves out response
over-provisioning: every prompt draws the same responses again (`ledger`), so that no length is
favoured.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from tasks.scheduling.batch import BatchAlgebra, BatchConfig, RoundShape, round_shape, times
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import (
    DYNAMIC_SAMPLING,
    LONG,
    SHORT,
    PlanningInputs,
    drain_round,
    queue_round,
)
from tasks.scheduling.short_round import ShortRoundScheduler
from tasks.scheduling.wait_for_all import WaitForAll

MIDDLE = "middle"  # rounds between the first level and the last
LEVEL_ETA = 1.5  # over-provisioning with which the longest kept response doubles by the level
FEWEST_LEVELS, MOST_LEVELS = 2, 4  # that suit any bound
SHORT_TOKENS = 2**13  # a bound that the second level comes near


def levels_within(cap_tokens: int) -> int:
    """Number of levels that suits responses of at most cap_tokens tokens with `LEVEL_ETA`: 2 for
    8k, 3 for 16k and 4 for 32k. One level too many makes two kinds of rounds that come near the
    bound. A fifth level has its first long round after 80 others, and gains 1 % at 32k
    (research/results/experiments.md)."""
    levels = FEWEST_LEVELS + round(math.log2(cap_tokens / SHORT_TOKENS))
    return min(MOST_LEVELS, max(FEWEST_LEVELS, levels))


class MultilevelBatchingConfig(FrozenConfig):
    """Short rounds, rounds over the prompts that these gave up on, and so on; only the last level
    waits for all."""

    kind: Literal["multilevel_batching"] = Field(
        "multilevel_batching", description="Tail batching with a queue for each level of length."
    )
    prompt_overprovision: float = Field(
        1.25,
        gt=1,
        le=4,
        description="Prompts that a round launches per prompt it keeps, but for the last level.",
    )
    num_levels: int = Field(
        3,
        ge=2,
        le=8,
        description=(
            "Levels of rounds; those of the last one wait for all. 2 is tail batching; one more"
            " pays where few prompts are much longer than the others, and in runs long enough to"
            " fill its rounds."
        ),
    )
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=DYNAMIC_SAMPLING)
    drain: bool = Field(
        True,
        description="Train what is left in the queues in extra steps after the last planned one.",
    )

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """The counts of one kind of round per level. A round of a level is due as soon as the level
        before has deferred enough prompts to fill it."""
        launched = times(self.prompt_overprovision, batch.prompts_per_step)
        most_waiting = (self.num_levels - 2) * (launched - 1) + launched - 1
        return BatchAlgebra(
            rounds=tuple(self._shape(batch, level) for level in range(self.num_levels)),
            reserve_prompts=times(self.dynamic_sampling, batch.prompts_per_step),
            max_drain_steps=(math.ceil(most_waiting / batch.prompts_per_step) if self.drain else 0),
        )

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """A round of the highest level whose queue can fill one, else a round over new prompts;
        after the last planned step a drain."""
        if turn.is_after_last:
            # those that were deferred least first
            queue = tuple(sorted(turn.state.queue, key=turn.state.times_deferred))
            return drain_round(turn, queue if self.drain else ())
        algebra = self.algebra(turn.batch)
        levels = reversed(range(1, self.num_levels))
        full = (
            level
            for level in levels
            if len(self._waiting(turn, level)) >= algebra.rounds[level].launch_prompts
        )
        level = next(full, 0)
        shape = algebra.rounds[level]
        waiting = self._waiting(turn, level)[: shape.launch_prompts]
        chooses = shape.accept_prompts < shape.launch_prompts
        return queue_round(turn, shape, algebra, waiting, chooses=chooses)

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """The scheduler of a round, which chooses if the round launches more than it keeps."""
        chooses = plan.accept_prompts < len(plan.prompts)
        return ShortRoundScheduler(plan) if chooses else WaitForAll(plan)

    def _waiting(self, turn: PlanningInputs, level: int) -> tuple[PromptRef, ...]:
        """The prompts that rounds of this level ask; none of level 0, which asks new ones."""
        deferred = turn.state.times_deferred
        queue, last = turn.state.queue, self.num_levels - 1
        return tuple(ref for ref in queue if min(deferred(ref), last) == level)

    def _shape(self, batch: BatchConfig, level: int) -> RoundShape:
        if level == self.num_levels - 1:
            return round_shape(LONG, batch)
        middle = MIDDLE if self.num_levels == 3 else f"{MIDDLE}-{level}"
        return round_shape(
            middle if level else SHORT,
            batch,
            prompt_overprovision=self.prompt_overprovision,
            frequency=self._frequency(batch, level),
        )

    def _frequency(self, batch: BatchConfig, level: int) -> float:
        """Rounds of a level for each one of the last. Each defers what the next level asks."""
        asked = times(self.prompt_overprovision, batch.prompts_per_step)
        deferred = asked - batch.prompts_per_step
        if not deferred:  # nothing ever is
            return 1.0
        num_between = self.num_levels - 2 - level
        return batch.prompts_per_step / deferred * (asked / deferred) ** num_between
