"""A scheduling policy: the first steps train few prompts, each later one a prompt more.

A policy has a `kind` and three methods: the counts of its rounds (`algebra`), the round of a step
(`plan_round`), and who decides within that round (`scheduler`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.scheduling.batch import BatchAlgebra, BatchConfig
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.wait_for_all import WaitForAll


class RampConfig(BaseModel):
    """Synchronous steps that grow to `batch.prompts_per_step` prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["ramp"] = Field("ramp", description="Synchronous steps that grow.")
    first_prompts: int = Field(1, ge=1, description="Prompts of the first step.")

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        return SyncConfig().algebra(batch)

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        num_prompts = min(self.first_prompts + turn.step - 1, turn.batch.prompts_per_step)
        batch = turn.batch.model_copy(update={"prompts_per_step": num_prompts})
        plan = SyncConfig().plan_round(replace(turn, batch=batch))
        return plan and replace(plan, kind="ramp")

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        return WaitForAll(plan)
