"""A scheduling policy: the first steps train few prompts, each later one a prompt more.

    rollflow check policy examples/ramp_policy.py:RampPolicy

A policy has three methods: the counts of its rounds (`algebra`), the round of a step
(`plan_round`), and who decides within that round (`scheduler`). All that it remembers is the state
in its `turn`.
"""

from __future__ import annotations

from dataclasses import replace

from artifacts.config_parts import FrozenConfig
from tasks.scheduling.batch import BatchAlgebra, BatchConfig
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.wait_for_all import WaitForAll


class RampPolicy(FrozenConfig):
    """Synchronous steps that grow to `batch.prompts_per_step` prompts."""

    first_prompts: int = 1  # prompts of the first step; `kwargs` sets it

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        return SyncConfig().algebra(batch)

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        num_prompts = min(self.first_prompts + turn.step - 1, turn.batch.prompts_per_step)
        batch = turn.batch.model_copy(update={"prompts_per_step": num_prompts})
        plan = SyncConfig().plan_round(replace(turn, batch=batch))
        return plan and replace(plan, kind="ramp")

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        return WaitForAll(plan)
