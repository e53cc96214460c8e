"""The training run: before, step after step, after.

    open -> restore -> evaluate
         -> [ plan_round -> rl_step -> commit ] x steps (+ drain), evaluations among them
         -> evaluate -> report

In this process, with a Prefect server that runs (`make demo` brings one), or by a worker of one:

    rollflow train --preset tiny --set num_steps=5
    prefect deployment run 'train/laptop' --watch -p config='{"preset": "smollm2", "num_steps": 40}'
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from prefect import State, flow, runtime
from prefect.states import Completed

from artifacts import layout
from artifacts.private_files import private_files
from artifacts.proxies import bypass_proxies
from artifacts.records import WeightsRef
from artifacts.reports.summary import RunSummary
from flows.config.run_config import RunConfig
from flows.dask_page import dask_page
from flows.engine_layout import EngineLayouts
from flows.evaluate import EvaluationReport, evaluate, evaluation_plan, recorded_evaluation
from flows.hosts import check_hosts
from flows.output import keep_log_in, say
from flows.prefect_pages import explaining_prefects_loss
from flows.recovery import RECOVERABLE, recover, retry, start_at
from flows.reporter import RunReporter
from flows.resume import nothing_left
from flows.rl_step import rl_step
from flows.run import OpenRun, check_ports, effective_config, open_run
from flows.run_log import hide_refused_secrets, logged_in_prefect
from flows.step_controller import EvaluationFlow, StepController, due
from flows.step_records import StepCommitter
from flows.steps import Steps
from flows.stopping import stoppable
from flows.task_runner import ClusterTaskRunner, on_cluster
from tasks.checkpointing import export_model
from tasks.cluster.dask_cluster import open_cluster, prepare_cluster
from tasks.cluster.devices import worker_specs
from tasks.cluster.ownership import take_cluster, telling_of_its_loss
from tasks.cluster.parent import is_bound
from tasks.engines.loading import load_all
from tasks.run.actor_handles import engines_of
from tasks.run.elastic_setup import worker_line
from tasks.run.fleet import Fleet
from tasks.run.sample_stream import round_key

logger = logging.getLogger(__name__)

hide_refused_secrets()

WORKER_IMPORTS = "flows.worker_imports"  # by name: the flow itself has no use for it


@flow(name="train", flow_run_name="train-{config.preset}", description=__doc__)
async def train(config: RunConfig) -> RunSummary | State[None]:
    """Post-train a model. Starts a local Dask cluster unless the configuration names a scheduler. A
    run that is finished is resumed by saying so."""
    if told := nothing_left(config):
        say(told)
        return Completed(message=told)
    bypass_proxies()  # the run's workers inherit it
    with ExitStack() as stack:
        stop = stack.enter_context(stoppable(logger.info if is_bound() else say))
        stack.enter_context(private_files())
        stack.enter_context(logged_in_prefect(str(runtime.flow_run.id)))
        run = stack.enter_context(open_run(config))
        stack.enter_context(stop.of(run.store))
        stack.enter_context(explaining_prefects_loss())
        keep_log_in(run.logs)
        say(f"run: {run.store.url}")
        say(f"logs: {run.logs}")
        say("starting the workers, their engines and learners")
        layouts = EngineLayouts(run)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollflow-")))
        cluster, certificate = run.config.cluster, run.certificate(scratch)
        imports = (WORKER_IMPORTS, *run.config.engine.imports)
        client = stack.enter_context(
            open_cluster(cluster, scratch, run.logs, imports, certificate, say)
        )
        stack.enter_context(telling_of_its_loss(client))
        page = run.local_report(layout.DASK_PAGE)
        if page is not None:
            stack.enter_context(dask_page(client, page))
        specs, start_s = worker_specs(cluster), run.config.deadlines.start_s
        workers = [spec.name for spec in specs]
        await take_cluster(client, run.context.run_id, workers, start_s)
        await check_hosts(client, run)
        fleet = stack.enter_context(Fleet(client, run.context, specs))
        if run.context.elastic.enabled:
            handed = certificate if cluster.makes_certificate else None
            line = worker_line(client.scheduler.address, run.context.elastic, handed)
            say(f"elastic workers: {line}")
        try:
            return await train_steps(
                run, fleet, layouts, ClusterTaskRunner(address=client.scheduler.address)
            )
        except RECOVERABLE as error:
            raise fleet.account(error) from error


def prepare_workers(config: RunConfig) -> None:
    """Let the run's workers begin with their imports; before anything has been started here."""
    effective = effective_config(config)
    check_ports(effective)
    prepare_cluster(effective.cluster, (WORKER_IMPORTS,), effective.engine.imports)


async def train_steps(
    run: OpenRun, fleet: Fleet, layouts: EngineLayouts, task_runner: ClusterTaskRunner
) -> RunSummary:
    """All steps that are still to do, and the evaluations around them."""
    step_flow = on_cluster(rl_step, task_runner)
    evaluation_flow = on_cluster(evaluate, task_runner)
    step = len(run.commits)
    weights = await start_at(run, fleet, step)
    records = StepCommitter(run, fleet.elastic.history)
    async with RunReporter(run, fleet.elastic.history) as reporter:
        for past in evaluations_until(run, step):
            scores = await evaluate_after(evaluation_flow, run, fleet, past, weights)
            reporter.tell_evaluation(past, scores)
        course = StepController(run, fleet, layouts, step_flow, evaluation_flow, reporter, records)
        steps = Steps(course, run.state, step, weights)
        while await steps.play():
            if due(steps.step, run.config.evaluation.every_steps):
                scores = await evaluate_after(
                    evaluation_flow, run, fleet, steps.step, steps.weights
                )
                reporter.tell_evaluation(steps.step, scores)
        scores = await evaluate_after(evaluation_flow, run, fleet, steps.step, steps.weights)
        reporter.tell_evaluation(steps.step, scores)
        model = await asyncio.to_thread(export_model, run.context, steps.weights)
        return await reporter.finish(model)


def evaluations_until(run: OpenRun, step: int) -> list[int]:
    """Steps up to this one whose evaluation an earlier attempt recorded, and this one if its own is
    due and missing."""
    missing = {step} if step == 0 or due(step, run.config.evaluation.every_steps) else set()
    return sorted(missing | run.evaluated_steps)


async def evaluate_after(
    flow_with_runner: EvaluationFlow, run: OpenRun, fleet: Fleet, step: int, weights: WeightsRef
) -> EvaluationReport:
    """Held-out scores after this step, with nothing beside; read back if they are recorded, else
    asked for until no worker dies under it. Afterwards the engines load their weights again, so
    that the next round's engine statistics count nothing of this."""
    plan = evaluation_plan(run, step, weights)

    async def ask(attempt: int) -> EvaluationReport:
        if attempt > 1:
            await recover(run, fleet, step)
        tried = replace(plan, run=fleet.run, attempt=attempt)
        await fleet.open_round(round_key(tried))
        report: EvaluationReport = await flow_with_runner(tried)
        await load_all(engines_of(fleet.run, fleet.run.engines), weights, run.context.probes)
        return report

    recorded = recorded_evaluation(plan)
    if recorded is not None:
        return recorded
    return await retry(ask, run.config.max_recoveries, f"evaluation after step={step}")
