"""The training run: before, step after step, after.

    open -> restore -> evaluate
         -> [ plan_round -> rl_step -> commit ] x steps (+ drain)
         -> evaluate -> report

In this process, with a Prefect server that runs (`make demo` brings one), or by a worker of one:

    rollflow train --preset tiny --set num_steps=5
    prefect deployment run 'train/laptop' --watch -p config='{"preset": "smollm2", "num_steps": 40}'
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from distributed import KilledWorker, performance_report
from distributed.client import FutureCancelledError
from prefect import flow, runtime
from prefect_dask import DaskTaskRunner

from artifacts import layout
from artifacts.checkpoint import Checkpoints
from artifacts.commit import commit_step
from artifacts.records import WeightsRef
from artifacts.reports.summary import RunSummary
from flows.begun_round import BegunRound, begun_round, keep_round
from flows.config.run_config import RunConfig
from flows.engine_layout import EngineLayouts, with_relayout
from flows.evaluate import EvaluationReport, evaluate, evaluation_round, recorded_evaluation
from flows.output import keep_log_in, say
from flows.overlapped_steps import OverlappedSteps, Planned, Played
from flows.place import Place
from flows.reporter import RunReporter
from flows.rl_step import rl_step
from flows.run import OpenRun, open_run
from flows.run_log import told_in_prefect
from tasks.cluster.actors import ActorLost
from tasks.cluster.dask_cluster import open_cluster
from tasks.cluster.devices import worker_specs
from tasks.cluster.ownership import take_cluster, telling_of_its_loss
from tasks.durable import export_model, restore_policy, save_checkpoint
from tasks.engines.base import EngineLost
from tasks.fleet import Fleet
from tasks.learner.ranks import PeerLost
from tasks.learner.reports import check_updates
from tasks.plan import StepPlan
from tasks.prompts import dataset_of
from tasks.report import StepReport
from tasks.rounds.report import RolloutReport
from tasks.sample_stream import round_key
from tasks.scheduling.parallelism import PlannerState
from tasks.scheduling.policies.base import Turn
from tasks.scheduling.queue_state import QueueState, finish_round, without_unfit

logger = logging.getLogger(__name__)


T = TypeVar("T")
StepFlow = Callable[[StepPlan], Awaitable[Any]]  # Any: the flow's report
OverlappedFlow = Callable[[StepPlan, Place], Awaitable[Any]]  # Any: as above
WORKER_IMPORTS = "tasks.worker_imports"  # by name: the flow itself has no use for it
RECOVERABLE = (ActorLost, EngineLost, PeerLost, KilledWorker, FutureCancelledError)


@flow(name="train", flow_run_name="train-{config.preset}", description=__doc__)
async def train(config: RunConfig) -> RunSummary:
    """Post-train a model. Starts a local Dask cluster unless the configuration names a
    scheduler."""
    with ExitStack() as stack:
        stack.enter_context(told_in_prefect(str(runtime.flow_run.id)))
        run = stack.enter_context(open_run(config))
        keep_log_in(run.logs)
        say(f"run: {run.store.url}")
        say(f"logs: {run.logs}")
        say("starting the workers, their engines and learners")
        layouts = EngineLayouts(run)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollflow-")))
        client = stack.enter_context(
            open_cluster(run.config.cluster, scratch, run.logs, imports=(WORKER_IMPORTS,))
        )
        stack.enter_context(telling_of_its_loss(client))
        page = run.local_report(layout.DASK_PAGE)
        if page is not None:
            stack.enter_context(performance_report(filename=str(page)))
        specs, start_s = worker_specs(run.config.cluster), run.config.deadlines.start_s
        workers = [spec.name for spec in specs]
        await take_cluster(client, run.context.run_id, workers, start_s)
        fleet = stack.enter_context(Fleet(client, run.context, specs))
        try:
            return await train_steps(
                run, fleet, layouts, DaskTaskRunner(address=client.scheduler.address)
            )
        except RECOVERABLE as error:
            raise fleet.account(error) from error


async def train_steps(
    run: OpenRun, fleet: Fleet, layouts: EngineLayouts, task_runner: DaskTaskRunner
) -> RunSummary:
    """All steps that are still to do, and the evaluations around them."""
    config = run.config
    step_flow = rl_step.with_options(task_runner=task_runner)
    evaluation_flow = evaluate.with_options(task_runner=task_runner)
    state, step = run.state, len(run.commits)
    weights = await start_at(run, fleet, step)
    async with RunReporter(run) as reporter:
        for past in evaluations_until(run, step):
            scores = await evaluate_after(evaluation_flow, run, fleet, past, weights)
            reporter.tell_evaluation(past, scores)
        overlapped = OverlappedSteps(
            OverlappedCourse(run, fleet, layouts, step_flow, reporter), state, step, weights
        )
        while True:
            if config.scheduling.algebra(config.batch).overlaps:
                if not await overlapped.play():
                    break
                step, weights = overlapped.step, overlapped.weights
            else:
                begun = next_round(run, state, step + 1)
                if begun is None:
                    break
                step += 1
                plan = StepPlan(run=run.context, round=begun.plan, weights=weights, attempt=1)
                report, checkpoint = await with_recovery(
                    run, fleet, plan, partial(play_step, step_flow, run, fleet, layouts)
                )
                state = state_after(begun.before, plan, report.rollout)
                weights = report.published.weights
                await commit(run, reporter, report, state, layouts.observe(report), checkpoint)
            if due(step, config.evaluation.every_steps):
                scores = await evaluate_after(evaluation_flow, run, fleet, step, weights)
                reporter.tell_evaluation(step, scores)
        scores = await evaluate_after(evaluation_flow, run, fleet, step, weights)
        reporter.tell_evaluation(step, scores)
        return await reporter.finish(await asyncio.to_thread(export_model, run.context, weights))


class OverlappedCourse:
    """What a run does with steps that overlap (`Course`)."""

    recoverable: tuple[type[BaseException], ...] = RECOVERABLE

    def __init__(
        self,
        run: OpenRun,
        fleet: Fleet,
        layouts: EngineLayouts,
        step_flow: OverlappedFlow,
        reporter: RunReporter,
    ) -> None:
        self.max_recoveries = run.config.max_recoveries
        self._run = run
        self._fleet = fleet
        self._layouts = layouts
        self._step_flow = step_flow
        self._reporter = reporter

    def plan(self, state: QueueState, step: int, weights: WeightsRef) -> Planned | None:
        begun = next_round(self._run, state, step, weights.version)
        if begun is None:
            return None
        plan = StepPlan(run=self._run.context, round=begun.plan, weights=weights, attempt=1)
        return Planned(before=begun.before, plan=plan)

    def after(self, before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
        return state_after(before, plan, rollout)

    def is_barrier(self, step: int) -> bool:
        config = self._run.config
        return step >= config.num_steps or due(step, config.evaluation.every_steps)

    async def open(self, plan: StepPlan, beside: Sequence[StepPlan]) -> None:
        if not beside:
            await self._fleet.announce(plan.weights.version)
        await self._fleet.open_round(round_key(plan), [*map(round_key, beside)])

    async def play(self, plan: StepPlan, place: Place) -> Played:
        report = await self._step_flow(replace(plan, run=self._fleet.run), place)
        return report, await checkpoint_after(self._run, plan.step)

    async def commit(self, report: StepReport, state: QueueState, checkpoint: str | None) -> None:
        planner = self._layouts.observe(report)
        await commit(self._run, self._reporter, report, state, planner, checkpoint)

    async def abort(self, reason: str) -> None:
        await self._fleet.abort_rounds(reason)

    async def recover(self, step: int) -> WeightsRef:
        return await recover(self._run, self._fleet, step)


def next_round(
    run: OpenRun, state: QueueState, step: int, published: int | None = None
) -> BegunRound | None:
    """The round of this step, as an earlier attempt began it or else begun and kept here; None when
    the run is over. published: the weights in all engines, if not those of the step before."""
    config = run.config
    begun = begun_round(run.store, step, config.num_steps, run.context.unfit)
    if begun is not None:
        return begun
    turn = Turn(
        state=state,
        batch=config.batch,
        step=step,
        num_steps=config.num_steps,
        domains=dataset_of(run.context).domains,
        seed=config.seed,
        unfit=run.context.unfit,
        published=published,
    )
    plan = config.scheduling.plan_round(turn)
    return keep_round(run.store, BegunRound(before=state, plan=plan)) if plan is not None else None


def evaluations_until(run: OpenRun, step: int) -> list[int]:
    """Steps up to this one whose evaluation an earlier attempt recorded, and this one if its own is
    due and missing."""
    missing = {step} if step == 0 or due(step, run.config.evaluation.every_steps) else set()
    return sorted(missing | run.evaluated_steps)


def state_after(before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
    """Where the prompts stand after the step's round. One that was begun with more room may leave
    prompts that do not fit."""
    after = finish_round(
        before,
        plan.round,
        accepted=rollout.accepted,
        deferred=rollout.deferred,
        dropped=rollout.dropped,
        filtered=rollout.filtered,
        carried=rollout.carried,
    )
    return without_unfit(after, plan.run.unfit)


async def play_step(
    step_flow: StepFlow, run: OpenRun, fleet: Fleet, layouts: EngineLayouts, plan: StepPlan
) -> tuple[StepReport, str | None]:
    """All of a step that needs workers: the engines in the round's layout, the step itself, and its
    checkpoint if one is due."""
    relayout = await layouts.arrange(fleet, plan.round.layout)
    await fleet.open_round(round_key(plan))
    report = with_relayout(await step_flow(replace(plan, run=fleet.run)), relayout)
    return report, await checkpoint_after(run, plan.step)


async def checkpoint_after(run: OpenRun, step: int) -> str | None:
    """The checkpoint of this step, if one is due."""
    keep = run.config.keep
    is_due = due(step, keep.checkpoint_every_steps)
    return await save_checkpoint(run.context, step, keep.checkpoints) if is_due else None


async def commit(
    run: OpenRun,
    reporter: RunReporter,
    report: StepReport,
    state: QueueState,
    planner: PlannerState,
    checkpoint: str | None,
) -> None:
    """Make the step final: the commit file, then everything that may be lost without harm. No
    worker is asked for anything.

    Raises GradientsNotFinite when too many steps in a row made no update for that reason. The step
    is committed by then, so that a resume goes on after it.
    """
    record = reporter.commit_record(report, state, planner, checkpoint)
    commit_step(run.store, record)
    Checkpoints(run.store, run.config.keep.checkpoints).prune(report.plan.step)
    await reporter.tell_step(report, record)
    check_updates(reporter.figures, run.config.learner.max_nonfinite_steps)


async def evaluate_after(
    flow_with_runner: StepFlow, run: OpenRun, fleet: Fleet, step: int, weights: WeightsRef
) -> EvaluationReport:
    """Held-out scores after this step; read back if they are recorded."""
    config = run.config.evaluation
    round_plan = evaluation_round(
        run.context, step, config.num_prompts, config.responses_per_prompt
    )
    plan = StepPlan(run=run.context, round=round_plan, weights=weights, attempt=1)

    async def ask(tried: StepPlan) -> EvaluationReport:
        await fleet.open_round(round_key(tried))
        report: EvaluationReport = await flow_with_runner(replace(tried, run=fleet.run))
        return report

    recorded = recorded_evaluation(plan)
    return recorded if recorded is not None else await with_recovery(run, fleet, plan, ask)


async def start_at(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """The actors, and in every engine the weights after this step: what a run begins with."""

    async def start(attempt: int) -> WeightsRef:
        await (fleet.start() if attempt == 1 else fleet.replace_lost())
        return await restore(run, fleet, step)

    return await retry(start, run.config.max_recoveries, f"weights of step={step}")


async def restore(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """Bring learners and engines to this step; the weights they hold then, which are a later step's
    if that was updated."""
    return (
        await restore_policy(fleet.run, step, run.config.keep.checkpoints, run.weights_of(step))
    ).weights


async def with_recovery(
    run: OpenRun, fleet: Fleet, plan: StepPlan, work: Callable[[StepPlan], Awaitable[T]]
) -> T:
    """Do a step or an evaluation; when a worker dies under it, replace what was lost and do the
    rest of it again.

    What the first attempt recorded is not generated again. A lost learner takes all ranks with it:
    they are restored from the last checkpoint and replay the committed steps.
    """

    async def recover_and_work(attempt: int) -> T:
        if attempt > 1:
            await recover(run, fleet, committed=plan.step if plan.is_evaluation else plan.step - 1)
        return await work(replace(plan, attempt=attempt))

    return await retry(recover_and_work, run.config.max_recoveries, f"step={plan.step}")


async def retry(work: Callable[[int], Awaitable[T]], max_recoveries: int, what: str) -> T:
    """Do it again, attempt after attempt from 1, as long as workers die under it."""
    for attempt in range(1, max_recoveries + 2):
        try:
            return await work(attempt)
        except RECOVERABLE as error:
            logger.warning("%s attempt=%d reason=%s", what, attempt, error)
            if attempt > max_recoveries:
                raise
    raise AssertionError("the last attempt either returns or raises")


async def recover(run: OpenRun, fleet: Fleet, committed: int) -> WeightsRef:
    """New actors for the lost ones, and the weights back to where they were, in engines that drop
    what a lost coordinator asked of them.

    What is restored depends on where the learners are: an attempt before may have made new ones and
    died before their replay.
    """
    await fleet.replace_lost()
    return await restore(run, fleet, committed)


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; 0 is never."""
    return every > 0 and step % every == 0
