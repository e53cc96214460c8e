"""The operations of a run on its steps, which `flows.steps` puts in order. If the policy says so,
steps overlap, and evaluations go on beside them; otherwise every step is a barrier."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from artifacts import layout
from artifacts.checkpoint import Checkpoints
from artifacts.commit import StepCommit, check_place, commit_step
from artifacts.journal import Journal
from artifacts.records import Span, WeightsRef
from flows.engine_layout import EngineLayouts, with_relayout
from flows.evaluate import evaluation_plan
from flows.recovery import RECOVERABLE, PartialRound, keep_round, partial_round, recover
from flows.reporter import RunReporter
from flows.run import OpenRun
from flows.seeding_windows import SeedingWindows
from flows.steps import Planned, Played, StepOrdering
from tasks.checkpointing import begin_checkpoint
from tasks.elastic.worker_history import WorkerHistory
from tasks.learner.reports import check_updates
from tasks.metrics.report import StepReport, stage_times
from tasks.metrics.step_cost import cost_metrics
from tasks.metrics.step_metrics import episode_metrics, lengths_so_far, running_totals, step_metrics
from tasks.rewards.programs.adaptive_timeout import merged, to_record
from tasks.rewards.registry import timeouts_of
from tasks.rounds.report import RolloutReport
from tasks.run.fleet import Fleet
from tasks.run.prompts import dataset_of
from tasks.run.run_context import StepPlan
from tasks.run.sample_stream import round_key
from tasks.scheduling.parallelism import PlannerState
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.queue_state import QueueState, finish_round, without_unfit

logger = logging.getLogger(__name__)

SAVED_WITHIN_S = 60.0  # seconds that a run which fails gives the checkpoint being saved
StepFlow = Callable[[StepPlan, StepOrdering | None], Awaitable[Any]]  # Any: the flow's report
EvaluationFlow = Callable[[StepPlan], Awaitable[Any]]  # Any: as above


class StepCommitter:
    """Makes the commits of steps from reports and recorded rows, for one attempt at a run."""

    def __init__(self, run: OpenRun, history: WorkerHistory) -> None:
        self._began_s = time.time()
        self._run = run
        self._history = history
        self._journal = Journal(run.store)

    def record(
        self,
        report: StepReport,
        state: QueueState,
        planner: PlannerState,
        checkpoint: str | None,
        before: StepCommit | None,
    ) -> StepCommit:
        """Make the commit of a step. state: the prompt queue after it. before: the commit
        before."""
        rows = self._journal.read(report.plan.step)
        # Unix time up to which device time is charged to earlier steps: the end of the last one,
        # or the beginning of this attempt if that is later
        paid_until_s = max(before.timings["finished_s"], self._began_s) if before else 0.0
        groups = tuple(self._journal.read_groups(report.plan.step, rows))
        metrics = (
            step_metrics(report, state, groups)
            | episode_metrics(report.rollout, rows)
            | cost_metrics(report, paid_until_s, self._history.workers)
        )
        if self._run.context.elastic.enabled:
            metrics |= self._history.record_step(rows)
        scores = [(row.prompt.domain, row.response.score) for row in rows]
        timeouts = timeouts_of(
            self._run.config.rewards,
            [(domain, score) for domain, score in scores if score is not None],
        )
        totals = running_totals(before.counters if before else {}, metrics, state)
        return StepCommit(
            step=report.plan.step,
            kind=report.plan.round.kind,
            weights=report.published.weights,
            queue=state.to_json(),
            seeds={"seed": self._run.config.seed},
            counters=totals,
            metrics=metrics | lengths_so_far(totals),
            timings=stage_times(report)
            | {"started_s": report.started_s, "finished_s": report.finished_s},
            checkpoint=checkpoint,
            planner=planner.to_json(),
            timeouts=to_record(merged(timeouts, report.reward.relearned)),
        )


@dataclass
class StepController:
    """The operations of one run on its steps (`flows.steps.StepOps`)."""

    run: OpenRun
    fleet: Fleet
    layouts: EngineLayouts
    step_flow: StepFlow
    evaluation_flow: EvaluationFlow
    reporter: RunReporter
    records: StepCommitter
    recoverable: tuple[type[BaseException], ...] = RECOVERABLE

    def __post_init__(self) -> None:
        self.max_recoveries = self.run.config.max_recoveries
        self._overlaps = self.run.config.scheduling.algebra(self.run.config.batch).overlaps
        self._windows = SeedingWindows(self.run)
        self._relayout: tuple[Span, ...] = ()  # of the last change of the engines' layout
        self._saving: asyncio.Task[str] | None = None  # the checkpoint that is being saved

    def plan(self, state: QueueState, step: int, weights: WeightsRef) -> Planned | None:
        """Plan a step from the prompt queue `state`; None if the run is over."""
        begun = next_round(self.run, state, step, weights.version)
        if begun is None:
            return None
        plan = StepPlan(run=self.run.context, round=begun.plan, weights=weights, attempt=1)
        return Planned(before=begun.before, plan=plan)

    def after(self, before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
        return state_after(before, plan, rollout)

    def is_barrier(self, step: int) -> bool:
        """Return True if no later round may begin before this step is committed."""
        return not self._overlaps or step >= self.run.config.num_steps

    def evaluation(self, step: int, weights: WeightsRef) -> StepPlan | None:
        """Plan the evaluation that goes on beside later steps; None if none is due."""
        run = self.run
        if self.is_barrier(step) or not is_due(step, run.config.evaluation.every_steps):
            return None
        return evaluation_plan(run, step, weights)

    async def evaluate(self, plan: StepPlan) -> None:
        report = await self.evaluation_flow(replace(plan, run=self.fleet.run))
        await self.reporter.report_evaluation(plan.step, report)

    async def open(self, plan: StepPlan, beside: Sequence[StepPlan]) -> None:
        """Bring the engines into the round's layout and open the round."""
        self._relayout = await self.layouts.arrange(self.fleet, plan.round.layout)
        if plan.overlaps and not any(other.overlaps for other in beside):
            await self.fleet.announce(plan.weights.version)
        await self.fleet.open_round(round_key(plan), [*map(round_key, beside)])

    async def play(self, plan: StepPlan, ordering: StepOrdering) -> Played:
        """Run the step's flow; begin its checkpoint if one is due, which is saved beside the next
        step."""
        relayout, keep = self._relayout, self.run.config.keep
        window = self._windows.plan(self.fleet.elastic.workers, plan.round.kind)
        placed = replace(plan, run=self.fleet.run, window=window)
        report = await self.step_flow(placed, ordering if plan.overlaps else None)
        await self.fleet.elastic.publish(report.published, plan.round.at_update)
        await self.checkpoint_saved()
        checkpoint = None
        if placed.trains and is_due(plan.step, keep.checkpoint_every_steps):
            checkpoint = layout.checkpoint_dir(plan.step)
            self._saving = await begin_checkpoint(self.run.context, plan.step, keep.checkpoints)
        if plan.step >= self.run.config.num_steps:
            await self.checkpoint_saved()
        return with_relayout(report, relayout), checkpoint

    async def checkpoint_saved(self) -> None:
        """Wait for the checkpoint that was begun last. Raises what made it fail: its step may be
        committed, and a resume then replays from an earlier one."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            await saving

    async def drop_checkpoint(self, wait_s: float) -> None:
        """Give up the checkpoint that is being saved, unless it is saved within so many seconds."""
        if self._saving is not None:
            await asyncio.wait([self._saving], timeout=wait_s)
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
            self._saving = None

    async def commit(self, report: StepReport, state: QueueState, checkpoint: str | None) -> None:
        """Write the commit file, then the reports that may be lost without harm. Needs no worker.
        Raises GradientsNotFinite, after the commit, if too many steps in a row had gradients that
        are not finite."""
        run, reporter = self.run, self.reporter
        planner = self.layouts.observe(report)
        record = self.records.record(report, state, planner, checkpoint, reporter.last)
        record = self._windows.enter(record, report, self.fleet.elastic.workers)
        check_place(run.store, run.context.manifest_digest, reporter.last)
        commit_step(run.store, record)
        Checkpoints(run.store, run.config.keep.checkpoints).prune(report.plan.step)
        await reporter.report_step(report, record)
        check_updates(reporter.figures, run.config.learner.max_nonfinite_steps)

    async def abort(self, reason: str) -> None:
        await self.fleet.abort_rounds(reason)

    async def recover(self, step: int, committed: WeightsRef) -> WeightsRef:
        """Replace lost actors and restore the weights; returns the weights to continue with. If
        steps do not overlap, these are the committed ones, even if engines hold those of the step
        after: the round of that step is then over, and is read back."""
        try:
            await self.checkpoint_saved()
        except self.recoverable as error:  # of a learner that is replaced now
            logger.warning("step=%d its checkpoint is not saved: %s", step, error)
        held = await recover(self.run, self.fleet, step)
        return held if self._overlaps else committed


def next_round(run: OpenRun, state: QueueState, step: int, published: int) -> PartialRound | None:
    """Read the plan of the round that an earlier attempt began for this step, or plan and store
    one; None if the run is over. published: the weight version in all engines."""
    config = run.config
    begun = partial_round(run.store, step, config.num_steps, run.context.unfit)
    if begun is not None:
        return begun
    dataset = dataset_of(run.context)
    inputs = PlanningInputs(
        state=state,
        batch=config.batch,
        step=step,
        num_steps=config.num_steps,
        domains=dataset.domains,
        seed=dataset.order_seed(config.seed),
        unfit=run.context.unfit,
        published=published,
        answering=config.learner.lora.answering,
    )
    plan = config.scheduling.plan_round(inputs)
    if plan is None:
        return None
    return keep_round(run.store, PartialRound(before=state, plan=plan))


def state_after(before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
    """The prompt queue after a round, without prompts that fitted when it was begun and no
    longer."""
    return without_unfit(finish_round(before, plan.round, rollout), plan.run.unfit)


def is_due(step: int, every: int) -> bool:
    """True if an action is due after this step; an `every` of 0 means never."""
    return every > 0 and step % every == 0
