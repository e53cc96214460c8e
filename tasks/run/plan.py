"""One step as its tasks are told of it, and where its records lie."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts import layout
from artifacts.journal import Journal
from artifacts.records import WeightsRef
from artifacts.store import Store
from tasks.rounds.records import InFlight
from tasks.run.run_context import RunContext
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.seeding import PlannedWindow
from tasks.scheduling.wait_for_all import WaitForAll

EVALUATION = layout.EVALUATION


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step: its round, and the weights that the engines hold when it begins."""

    run: RunContext
    round: RoundPlan
    weights: WeightsRef
    attempt: int  # 1, and one more after each recovery
    adopted: tuple[InFlight, ...] = ()  # what the round before left on the engines
    leaves_running: bool = False  # whether what the round carries may run on when it is over
    window: PlannedWindow | None = None  # in which the run's own engines generate; None for all

    @property
    def step(self) -> int:
        return self.round.step

    @property
    def versions(self) -> range:
        """Weight versions whose tokens the round may train: the one that the engines hold, and in
        an asynchronous round those within the bound."""
        if self.round.admission is not None:
            return self.round.versions
        return range(self.weights.version, self.weights.version + 1)

    @property
    def is_evaluation(self) -> bool:
        return self.round.is_evaluation

    @property
    def overlaps(self) -> bool:
        """Whether the engines generate while other steps train."""
        return self.round.overlaps

    def scheduler(self) -> RoundScheduler:
        """Who decides within the round; an evaluation waits for all that it asks."""
        if self.is_evaluation:
            return WaitForAll(self.round)
        return self.run.scheduling.scheduler(self.round)


def store_of(plan: StepPlan) -> Store:
    """Where this step's records lie; those of evaluations lie apart."""
    store = plan.run.open_store()
    return store.child(EVALUATION) if plan.is_evaluation else store


def journal_of(plan: StepPlan) -> Journal:
    """Where the responses of this step are recorded."""
    return Journal(store_of(plan))
