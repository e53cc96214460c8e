"""A scheduling policy with a scheduler of its own: a round asks one prompt after the other.

    start ─▶ Launch ... ─▶ handle(Finished), handle(Scored) ... ─▶ AcceptGroup, Launch ... ─▶ ...

    rollflow check policy examples/in_turn_policy.py:InTurnPolicy

A scheduler gets events and returns decisions. It is pure: no clock, no random source, no device.
"""

from __future__ import annotations

from dataclasses import replace

from tasks.scheduling.batch import BatchAlgebra, BatchConfig
from tasks.scheduling.events import AcceptGroup, CloseRound, Decision, Drop, Event, RoundPlan
from tasks.scheduling.groups import GroupProgress
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.policies.sync import SyncConfig


class InTurnPolicy:
    """Synchronous steps whose rounds ask one prompt at a time."""

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        return SyncConfig().algebra(batch)

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        plan = SyncConfig().plan_round(turn)
        return plan and replace(plan, kind="in_turn")

    def scheduler(self, plan: RoundPlan) -> InTurn:
        return InTurn(plan)


class InTurn:
    """Launches the next prompt when the one before has its group, or can never have one."""

    def __init__(self, plan: RoundPlan) -> None:
        self._groups = [GroupProgress(ref, plan) for ref in plan.prompts]

    def start(self) -> list[Decision]:
        return [*self._groups[0].begin()] if self._groups else [CloseRound()]

    def handle(self, event: Event) -> list[Decision]:
        group = self._groups[0]
        decisions: list[Decision] = [*group.handle(event)]
        if group.is_complete:
            indices = group.accepted_indices()
            decisions.append(AcceptGroup(prompt_id=group.ref.prompt_id, indices=indices))
        elif group.is_hopeless:
            decisions.append(Drop(prompt_id=group.ref.prompt_id))
        else:
            return decisions
        del self._groups[0]
        return [*decisions, *self.start()]

    def waiting_for(self) -> str:
        return f"{len(self._groups)} groups are missing"
