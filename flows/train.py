"""The training run: before, step after step, after.

open -> restore -> evaluate -> [ plan_round -> rl_step -> commit ] x steps (+ drain) -> evaluate -> report

python -m flows.start --preset tiny --set num_steps=5        in this process; needs a Prefect server, `make demo` brings one
prefect deployment run 'train/laptop' --watch -p config='{"preset": "smollm2", "num_steps": 40}'
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from distributed import KilledWorker, performance_report
from distributed.client import FutureCancelledError
from prefect import flow
from prefect_dask import DaskTaskRunner

from artifacts.checkpoint import Checkpoints
from artifacts.commit import commit_step
from artifacts.records import WeightsRef
from artifacts.summary import RunSummary
from flows.config import RunConfig
from flows.engine_layout import EngineLayouts, with_relayout
from flows.evaluate import EvaluationReport, evaluate, evaluation_round, recorded_evaluation
from flows.reporter import RunReporter
from flows.rl_step import rl_step
from flows.run import OpenRun, open_run
from tasks.cluster.actors import ActorLost
from tasks.cluster.dask_cluster import open_cluster
from tasks.cluster.devices import worker_specs
from tasks.cluster.fleet import Fleet
from tasks.durable import export_model, restore_policy, save_checkpoint
from tasks.engines.base import EngineLost
from tasks.plan import StepPlan, dataset_of
from tasks.report import StepReport
from tasks.sample_stream import round_key
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.parallelism import PlannerState
from tasks.scheduling.rounds import QueueState, finish_round, plan_round
from tasks.train import publish

logger = logging.getLogger(__name__)


T = TypeVar("T")
StepFlow = Callable[[StepPlan], Awaitable[Any]]  # Any: the flow's report
RECOVERABLE = (ActorLost, EngineLost, KilledWorker, FutureCancelledError)


@flow(name="train", flow_run_name="train-{config.preset}", description=__doc__)
async def train(config: RunConfig) -> RunSummary:
    """Post-train a model. Starts a local Dask cluster unless the configuration names a scheduler."""
    with ExitStack() as stack:
        run = stack.enter_context(open_run(config))
        layouts = EngineLayouts(run)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollflow-")))
        client = stack.enter_context(open_cluster(run.config.cluster, scratch))
        page = run.local_report("dask.html")
        if page is not None:
            stack.enter_context(performance_report(filename=str(page)))
        fleet = stack.enter_context(
            Fleet(
                client, run.context, worker_specs(run.config.cluster), run.config.engine, run.config.learner, run.config.deadlines.start_s
            )
        )
        return await train_steps(run, fleet, layouts, DaskTaskRunner(address=client.scheduler.address))


async def train_steps(run: OpenRun, fleet: Fleet, layouts: EngineLayouts, task_runner: DaskTaskRunner) -> RunSummary:
    """All steps that are still to do, and the evaluations around them."""
    config = run.config
    step_flow, evaluation_flow = rl_step.with_options(task_runner=task_runner), evaluate.with_options(task_runner=task_runner)
    state, step = run.state, len(run.commits)
    weights = await restored(run, fleet, step)
    async with RunReporter(run) as reporter:
        for past in evaluations_until(run, step):
            reporter.evaluated(past, await evaluated(evaluation_flow, run, fleet, past, weights))
        while (round_plan := next_round(run, state, step + 1)) is not None:
            step += 1
            plan = StepPlan(run=run.context, round=round_plan, weights=weights, attempt=1)
            report, checkpoint = await recovering(run, fleet, plan, partial(stepped, step_flow, run, fleet, layouts))
            state, weights = state_after(state, report), report.published.weights
            await commit(run, reporter, report, state, layouts.observe(report), checkpoint)
            if due(step, config.evaluation.every_steps):
                reporter.evaluated(step, await evaluated(evaluation_flow, run, fleet, step, weights))
        reporter.evaluated(step, await evaluated(evaluation_flow, run, fleet, step, weights))
        return await reporter.finish(await asyncio.to_thread(export_model, run.context, weights))


def next_round(run: OpenRun, state: QueueState, step: int) -> RoundPlan | None:
    """The round of this step, or None when the run is over."""
    config, domains = run.config, dataset_of(run.context).domains
    return plan_round(state, config.batch, config.scheduling, domains=domains, seed=config.seed, step=step, num_steps=config.num_steps)


def evaluations_until(run: OpenRun, step: int) -> list[int]:
    """Steps up to this one whose evaluation an earlier attempt recorded, and this one if its own is due and missing."""
    missing = {step} if step == 0 or due(step, run.config.evaluation.every_steps) else set()
    return sorted(missing | run.evaluated_steps)


def state_after(state: QueueState, report: StepReport) -> QueueState:
    """Where the prompts stand after the step."""
    rollout = report.rollout
    return finish_round(
        state,
        report.plan.round,
        accepted=rollout.accepted,
        deferred=rollout.deferred,
        dropped=rollout.dropped,
        filtered=rollout.filtered,
    )


async def stepped(step_flow: StepFlow, run: OpenRun, fleet: Fleet, layouts: EngineLayouts, plan: StepPlan) -> tuple[StepReport, str | None]:
    """All of a step that needs workers: the engines in the round's layout, the step itself, and its checkpoint if one is due."""
    relayout = await layouts.arrange(fleet, plan.round.kind)
    await fleet.open_round(round_key(plan))
    report = with_relayout(await step_flow(replace(plan, run=fleet.run)), relayout)
    keep = run.config.keep
    is_due = due(plan.step, keep.checkpoint_every_steps)
    return report, await save_checkpoint(run.context, plan.step, keep.checkpoints) if is_due else None


async def commit(
    run: OpenRun, reporter: RunReporter, report: StepReport, state: QueueState, planner: PlannerState, checkpoint: str | None
) -> None:
    """Make the step final: the commit file, then everything that may be lost without harm. No worker is asked for anything."""
    record = reporter.commit_record(report, state, planner, checkpoint)
    commit_step(run.store, record)
    Checkpoints(run.store, run.config.keep.checkpoints).prune(report.plan.step)
    await reporter.stepped(report, record)


async def evaluated(flow_with_runner: StepFlow, run: OpenRun, fleet: Fleet, step: int, weights: WeightsRef) -> EvaluationReport:
    """Held-out scores after this step; read back if they are recorded."""
    config = run.config.evaluation
    round_plan = evaluation_round(run.context, step, config.num_prompts, config.responses_per_prompt)
    plan = StepPlan(run=run.context, round=round_plan, weights=weights, attempt=1)

    async def asked(tried: StepPlan) -> EvaluationReport:
        await fleet.open_round(round_key(tried))
        report: EvaluationReport = await flow_with_runner(replace(tried, run=fleet.run))
        return report

    recorded = recorded_evaluation(plan)
    return recorded if recorded is not None else await recovering(run, fleet, plan, asked)


async def restored(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """The weights after this step, in every engine: what a run begins or goes on with."""

    async def attempted(attempt: int) -> WeightsRef:
        if attempt > 1:
            await fleet.replace_lost()
        return await restore(run, fleet, step)

    return await persisting(attempted, run.config.max_recoveries, f"weights of step={step}")


async def restore(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """Bring learners and engines to this step; its weights."""
    return (await restore_policy(fleet.run, step, run.config.keep.checkpoints, run.weights_of(step))).weights


async def recovering(run: OpenRun, fleet: Fleet, plan: StepPlan, work: Callable[[StepPlan], Awaitable[T]]) -> T:
    """Do a step or an evaluation; when a worker dies under it, replace what was lost and do the rest of it again.

    What the first attempt recorded is not generated again. A lost learner takes all ranks with it: they are restored from the
    last checkpoint and replay the committed steps.
    """

    async def attempted(attempt: int) -> T:
        if attempt > 1:
            await recover(run, fleet, committed=plan.step if plan.is_evaluation else plan.step - 1)
        return await work(replace(plan, attempt=attempt))

    return await persisting(attempted, run.config.max_recoveries, f"step={plan.step}")


async def persisting(work: Callable[[int], Awaitable[T]], max_recoveries: int, what: str) -> T:
    """Do it again, attempt after attempt from 1, as long as workers die under it."""
    for attempt in range(1, max_recoveries + 2):
        try:
            return await work(attempt)
        except RECOVERABLE as error:
            logger.warning("%s attempt=%d reason=%s", what, attempt, error)
            if attempt > max_recoveries:
                raise
    raise AssertionError("the last attempt either returns or raises")


async def recover(run: OpenRun, fleet: Fleet, committed: int) -> None:
    """New actors for the lost ones, and the weights back to where they were."""
    lost = await fleet.replace_lost()
    if set(lost) & set(run.context.learners):
        await restore(run, fleet, committed)
    else:
        await publish(fleet.run)


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; 0 is never."""
    return every > 0 and step % every == 0
