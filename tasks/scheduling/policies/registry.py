"""Every scheduling policy that a configuration may choose, a line each, and that of a class of the
user's."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BaseModel, Field

from artifacts.custom_part import CustomPart
from tasks.scheduling.batch import BatchAlgebra, BatchConfig
from tasks.scheduling.events import (
    Decision,
    Event,
    OverlappedScheduler,
    Published,
    RoundPlan,
    RoundScheduler,
)
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.policies.multilevel import MultilevelBatchingConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig


class CustomPolicy(CustomPart):
    """The policy of a class of the user's, with the methods of `tasks.scheduling.policies.base`."""

    check: ClassVar[str] = "policy"
    methods: ClassVar[tuple[str, ...]] = ("algebra", "plan_round", "scheduler")
    kind: Literal["custom"] = Field("custom", description="Chooses a policy of your own.")

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        part = self.made()
        with self.calling("algebra"):
            found: BatchAlgebra = part.algebra(batch)
        return found

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        part = self.made()
        with self.calling("plan_round"):
            plan: RoundPlan | None = part.plan_round(turn)
        return plan

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """The user's scheduler, whose errors name file and line."""
        part = self.made()
        with self.calling("scheduler"):
            made: RoundScheduler = part.scheduler(plan)
        if isinstance(made, OverlappedScheduler):
            return _Publishing(self, made)
        return _Scheduling(self, made)


class _Scheduling:
    def __init__(self, policy: CustomPolicy, inner: RoundScheduler) -> None:
        self._policy, self._inner = policy, inner

    def start(self) -> list[Decision]:
        with self._policy.calling("start of the scheduler"):
            return self._inner.start()

    def handle(self, event: Event) -> list[Decision]:
        with self._policy.calling("handle of the scheduler"):
            return self._inner.handle(event)

    def waiting_for(self) -> str:
        with self._policy.calling("waiting_for of the scheduler"):
            return self._inner.waiting_for()


class _Publishing(_Scheduling):
    def __init__(self, policy: CustomPolicy, inner: OverlappedScheduler) -> None:
        super().__init__(policy, inner)
        self._overlapped = inner

    def publish(self, event: Published) -> list[Decision]:
        with self._policy.calling("publish of the scheduler"):
            return self._overlapped.publish(event)


SchedulingConfig = Annotated[
    SyncConfig  # every step waits for all that it launched
    | AsynchronousConfig  # rounds that overlap the training of earlier steps
    | MultilevelBatchingConfig  # tail batching with a queue for each level of length
    | TailBatchingConfig  # short rounds that keep the first to finish, long ones for the rest
    | CustomPolicy,  # a class of the user's
    Field(discriminator="kind"),
]
POLICIES: tuple[type[BaseModel], ...] = get_args(get_args(SchedulingConfig)[0])[:-1]  # our own
