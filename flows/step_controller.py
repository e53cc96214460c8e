"""What a run does with each of its steps: plan it, make room for it, play it, commit it, and
recover from what it lost (`flows.steps` has the order).

Steps overlap where the policy says so, and go on beside evaluations. All others are played one at a
time: every step is a barrier.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from artifacts.checkpoint import Checkpoints
from artifacts.commit import check_place, commit_step
from artifacts.records import Span, WeightsRef
from flows.engine_layout import EngineLayouts, with_relayout
from flows.evaluate import evaluation_plan
from flows.partial_round import PartialRound, keep_round, partial_round
from flows.recovery import RECOVERABLE, recover
from flows.reporter import RunReporter
from flows.run import OpenRun
from flows.seeding_windows import SeedingWindows
from flows.step_ordering import StepOrdering
from flows.step_records import StepCommitter
from flows.steps import Planned, Played
from tasks.checkpointing import save_checkpoint
from tasks.learner.reports import check_updates
from tasks.metrics.report import StepReport
from tasks.rounds.report import RolloutReport
from tasks.run.fleet import Fleet
from tasks.run.prompts import dataset_of
from tasks.run.run_context import StepPlan
from tasks.run.sample_stream import round_key
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.queue_state import QueueState, finish_round, without_unfit

StepFlow = Callable[[StepPlan, StepOrdering | None], Awaitable[Any]]  # Any: the flow's report
EvaluationFlow = Callable[[StepPlan], Awaitable[Any]]  # Any: as above


class StepController:
    """The course of one run (`Course`)."""

    recoverable: tuple[type[BaseException], ...] = RECOVERABLE

    def __init__(
        self,
        run: OpenRun,
        fleet: Fleet,
        layouts: EngineLayouts,
        step_flow: StepFlow,
        evaluation_flow: EvaluationFlow,
        reporter: RunReporter,
        records: StepCommitter,
    ) -> None:
        self.max_recoveries = run.config.max_recoveries
        self._run = run
        self._fleet = fleet
        self._layouts = layouts
        self._step_flow = step_flow
        self._evaluation_flow = evaluation_flow
        self._reporter = reporter
        self._records = records
        self._overlaps = run.config.scheduling.algebra(run.config.batch).overlaps
        self._windows = SeedingWindows(run)
        self._relayout: tuple[Span, ...] = ()  # what bringing the engines into the layout cost

    def plan(self, state: QueueState, step: int, weights: WeightsRef) -> Planned | None:
        begun = next_round(self._run, state, step, weights.version)
        if begun is None:
            return None
        plan = StepPlan(run=self._run.context, round=begun.plan, weights=weights, attempt=1)
        return Planned(before=begun.before, plan=plan)

    def after(self, before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
        return state_after(before, plan, rollout)

    def is_barrier(self, step: int) -> bool:
        return not self._overlaps or step >= self._run.config.num_steps

    def evaluation(self, step: int, weights: WeightsRef) -> StepPlan | None:
        run = self._run
        if self.is_barrier(step) or not due(step, run.config.evaluation.every_steps):
            return None
        return evaluation_plan(run, step, weights)

    async def evaluate(self, plan: StepPlan) -> None:
        report = await self._evaluation_flow(replace(plan, run=self._fleet.run))
        self._reporter.tell_evaluation(plan.step, report)

    async def open(self, plan: StepPlan, beside: Sequence[StepPlan]) -> None:
        self._relayout = await self._layouts.arrange(self._fleet, plan.round.layout)
        if plan.overlaps and not any(other.overlaps for other in beside):
            await self._fleet.announce(plan.weights.version)
        await self._fleet.open_round(round_key(plan), [*map(round_key, beside)])

    async def play(self, plan: StepPlan, place: StepOrdering) -> Played:
        """The step's flow, and its checkpoint if one is due."""
        relayout = self._relayout
        shared = place if plan.overlaps else None
        window = self._windows.plan(self._fleet.elastic.workers, plan.round.kind)
        placed = replace(plan, run=self._fleet.run, window=window)
        report = await self._step_flow(placed, shared)
        await self._fleet.published(report.published, plan.round.at_update)
        return with_relayout(report, relayout), await self._checkpoint(plan.step)

    async def _checkpoint(self, step: int) -> str | None:
        """Save the checkpoint of this step, if one is due; where it lies."""
        keep = self._run.config.keep
        if not due(step, keep.checkpoint_every_steps):
            return None
        return await save_checkpoint(self._run.context, step, keep.checkpoints)

    async def commit(self, report: StepReport, state: QueueState, checkpoint: str | None) -> None:
        """The commit file, then everything that may be lost without harm. No worker is asked for
        anything.

        Raises GradientsNotFinite when too many steps in a row made no update for that reason. The
        step is committed by then, so that a resume goes on after it.
        """
        run, reporter = self._run, self._reporter
        planner = self._layouts.observe(report)
        record = self._records.record(report, state, planner, checkpoint, reporter.last)
        record = self._windows.enter(record, report, self._fleet.elastic.workers)
        check_place(run.store, run.context.manifest_digest, reporter.last)
        commit_step(run.store, record)
        Checkpoints(run.store, run.config.keep.checkpoints).prune(report.plan.step)
        await reporter.tell_step(report, record)
        check_updates(reporter.figures, run.config.learner.max_nonfinite_steps)

    async def abort(self, reason: str) -> None:
        await self._fleet.abort_rounds(reason)

    async def recover(self, step: int, committed: WeightsRef) -> WeightsRef:
        """A step that overlaps none goes on with the committed weights, even if engines hold its
        own meanwhile: then its round is over, and read back."""
        held = await recover(self._run, self._fleet, step)
        return held if self._overlaps else committed


def next_round(run: OpenRun, state: QueueState, step: int, published: int) -> PartialRound | None:
    """The round of this step, as an earlier attempt began it or else begun and kept here; None when
    the run is over. published: the weight version in all engines."""
    config = run.config
    begun = partial_round(run.store, step, config.num_steps, run.context.unfit)
    if begun is not None:
        return begun
    dataset = dataset_of(run.context)
    turn = PlanningInputs(
        state=state,
        batch=config.batch,
        step=step,
        num_steps=config.num_steps,
        domains=dataset.domains,
        seed=dataset.order_seed(config.seed),
        unfit=run.context.unfit,
        published=published,
    )
    plan = config.scheduling.plan_round(turn)
    return (
        keep_round(run.store, PartialRound(before=state, plan=plan)) if plan is not None else None
    )


def state_after(before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
    """Where the prompts stand after the step's round. One that was begun with more room may leave
    prompts that do not fit."""
    return without_unfit(finish_round(before, plan.round, rollout), plan.run.unfit)


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; 0 is never."""
    return every > 0 and step % every == 0
