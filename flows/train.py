"""The flow of a training run: checks and start, step after step, final evaluation and report.

    open -> restore -> evaluate
         -> [ plan_round -> rl_step -> commit ] x steps (+ drain), evaluations among them
         -> evaluate -> report

Start it in this process, beside a running Prefect server (`make demo` brings one), or by a worker
of a Prefect server:

    rollflow train --preset tiny --set num_steps=5
    prefect deployment run 'train/laptop' --watch -p config='{"preset": "smollm2", "num_steps": 40}'
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from distributed import Client, performance_report
from prefect import State, flow, runtime
from prefect.states import Completed

from artifacts import layout
from artifacts.handover import OWNER
from artifacts.private_files import private_files
from artifacts.proxies import bypass_proxies
from artifacts.records import WeightsRef
from artifacts.reports.summary import RunSummary
from flows.config.form import FormConfig
from flows.config.run_config import RunConfig
from flows.engine_layout import EngineLayouts
from flows.evaluate import EvaluationReport, evaluate, evaluation_plan, recorded_evaluation
from flows.output import keep_log_in, print_line
from flows.prefect_server import hide_refused_secrets, logged_in_prefect, prefect_loss_explained
from flows.recovery import RECOVERABLE, copy_plans, recover, retry, start_at
from flows.reporter import RunReporter
from flows.resume import effective_config, meant_run, nothing_left
from flows.rl_step import rl_step
from flows.run import OpenRun, evaluated_steps, open_run
from flows.step_controller import (
    SAVED_WITHIN_S,
    EvaluationFlow,
    StepCommitter,
    StepController,
    is_due,
)
from flows.steps import Steps
from flows.stopping import stoppable
from flows.task_runner import on_cluster
from tasks.checkpointing import export_model
from tasks.cluster.dask_cluster import open_cluster, prepare_cluster
from tasks.cluster.devices import worker_specs
from tasks.cluster.host_checks import SharedFile, check_numbering, check_shared
from tasks.cluster.ownership import take_cluster, telling_of_its_loss
from tasks.cluster.parent import is_bound
from tasks.engines.base import load_all
from tasks.run.actor_handles import engines_of
from tasks.run.elastic_setup import worker_line
from tasks.run.fleet import Fleet
from tasks.run.run_context import RunContext
from tasks.run.sample_stream import round_key
from tasks.train import publish

logger = logging.getLogger(__name__)

hide_refused_secrets()

WORKER_IMPORTS = "flows.worker_imports"  # by name: the flow itself does not use the module
ANSWER_S = 20.0  # the scheduler must answer within this time for Dask's page
SAME_MODEL = "put the model there under the same path, or set keep.model_cache to a shared folder"


@flow(name="train", flow_run_name="train-{config.preset}", description=__doc__)
async def train(config: FormConfig) -> RunSummary | State[None]:
    """Post-train a model, on a local cluster or a named one. A finished run's resume ends at
    once."""
    config = meant_run(config)
    if told := nothing_left(config):
        print_line(told)
        return Completed(message=told)
    bypass_proxies()  # the run's workers inherit it
    with ExitStack() as stack:
        stop = stack.enter_context(stoppable(logger.info if is_bound() else print_line))
        stack.enter_context(private_files())
        stack.enter_context(logged_in_prefect(str(runtime.flow_run.id)))
        run = stack.enter_context(open_run(config))
        stack.enter_context(stop.watched(run.store))
        stack.enter_context(prefect_loss_explained())
        keep_log_in(run.logs)
        print_line(f"run: {run.store.url}")
        if run.commits:
            print_line(f"goes on after step {len(run.commits)} of {run.config.num_steps}")
        print_line(f"logs: {run.logs}")
        print_line("starting the workers, their engines and learners")
        layouts = EngineLayouts(run)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollflow-")))
        cluster, certificate = run.config.cluster, run.certificate(scratch)
        imports = (WORKER_IMPORTS, *run.config.engine.imports)
        client = stack.enter_context(
            open_cluster(cluster, scratch, run.logs, imports, certificate, print_line)
        )
        stack.enter_context(telling_of_its_loss(client))
        page = run.local_report(layout.DASK_PAGE)
        if page is not None:
            stack.enter_context(dask_page(client, page))
        specs, start_s = worker_specs(cluster), run.config.deadlines.start_s
        workers = [spec.name for spec in specs]
        await take_cluster(client, run.context.run_id, workers, start_s)
        await check_machines(client, run)
        fleet = stack.enter_context(Fleet(client, run.context, specs))
        if run.context.elastic.enabled:
            handed = certificate if cluster.makes_certificate else None
            line = worker_line(client.scheduler.address, run.context.elastic, handed)
            print_line(f"elastic workers: {line}")
        try:
            return await train_steps(run, fleet, layouts, client)
        except RECOVERABLE as error:
            raise fleet.account(error) from error


def prepare_workers(config: RunConfig) -> None:
    """Begin importing the workers' modules."""
    effective = effective_config(config)
    prepare_cluster(effective.cluster, (WORKER_IMPORTS,), effective.engine.imports)


async def train_steps(
    run: OpenRun, fleet: Fleet, layouts: EngineLayouts, client: Client
) -> RunSummary:
    """Play all remaining steps and evaluations, export the model, and report."""
    step = len(run.commits)
    weights = await start_at(run, fleet, step)
    records = StepCommitter(run, fleet.elastic.history)
    async with (
        on_cluster(client, rl_step, evaluate) as (step_flow, evaluation_flow),
        RunReporter(run, fleet.elastic.history) as reporter,
    ):

        async def evaluate_and_report(step: int, weights: WeightsRef) -> EvaluationReport:
            scores = await evaluate_after(evaluation_flow, run, fleet, step, weights)
            await reporter.report_evaluation(step, scores)
            return scores

        for past in evaluations_until(run, step):
            await evaluate_and_report(past, weights)
        copy_plans(run)
        ops = StepController(run, fleet, layouts, step_flow, evaluation_flow, reporter, records)
        steps = Steps(ops, run.state, step, weights)
        try:
            while await steps.play():
                if run.config.trains and is_due(steps.step, run.config.evaluation.every_steps):
                    await evaluate_and_report(steps.step, steps.weights)
        except BaseException as error:
            is_stopped = not isinstance(error, Exception)
            await ops.drop_checkpoint(0.0 if is_stopped else SAVED_WITHIN_S)
            raise
        if not run.config.trains:
            return await reporter.finish("")
        best = (await evaluate_and_report(steps.step, steps.weights)).best
        base = getattr(run.config.model, "repository", "")
        model = await asyncio.to_thread(export_model, run.context, steps.weights, base, best)
        if best:
            print_line(f"model/ is of adapter {best}, the best by held-out reward; all: adapter/")
        return await reporter.finish(model)


def evaluations_until(run: OpenRun, step: int) -> list[int]:
    """List the steps up to this one whose evaluation is recorded, and this step if one is due; none
    of a run that does not train."""
    if not run.config.trains:
        return []
    missing = {step} if step == 0 or is_due(step, run.config.evaluation.every_steps) else set()
    return sorted(missing | evaluated_steps(run.store))


async def evaluate_after(
    flow_with_runner: EvaluationFlow, run: OpenRun, fleet: Fleet, step: int, weights: WeightsRef
) -> EvaluationReport:
    """Evaluate the weights after this step while no step is under way, again if workers die; read a
    recorded evaluation back. Afterwards the engines load their weights again, which resets their
    statistics, so that those of the next round leave the evaluation out."""
    plan = evaluation_plan(run, step, weights)

    async def try_once(attempt: int) -> EvaluationReport:
        if attempt > 1:
            await recover(run, fleet, step)
        tried = replace(plan, run=fleet.run, attempt=attempt)
        await fleet.open_round(round_key(tried))
        report: EvaluationReport = await flow_with_runner(tried)
        if fleet.run.transport == "file":
            await load_all(engines_of(fleet.run, fleet.run.engines), weights, run.context.probes)
        else:
            await publish(fleet.run)
        return report

    recorded = recorded_evaluation(plan)
    if recorded is not None:
        return recorded
    return await retry(try_once, run.config.max_recoveries, f"evaluation after step={step}")


@contextmanager
def dask_page(client: Client, page: Path) -> Iterator[None]:
    """Write Dask's own page on the workers' tasks after the block, also if it fails. No run depends
    on this page: if the scheduler does not answer, a warning is logged."""
    report = performance_report(filename=str(page), mode="inline")  # read without a network
    client.sync(report.__aenter__)
    try:
        yield
    finally:
        end = (None, None, None)
        try:  # the timeout limits the wait for a scheduler that is gone, which Dask would retry
            client.sync(report.__aexit__, *end, code="", callback_timeout=ANSWER_S)
        except (OSError, RuntimeError, ValueError) as error:  # TimeoutError is an OSError
            reason = str(error) or f"no answer within {ANSWER_S:.0f} s"
            logger.warning("no page of Dask's: %s", reason)


async def check_machines(client: Client, run: OpenRun) -> None:
    """Check the machines of a joined cluster before any actor is built. Raises ValueError if a
    worker cannot read a file of the run, or if a device's number belongs to another machine."""
    config, cluster = run.config, run.config.cluster
    if cluster.scheduler_address is None:
        return
    specs, files = worker_specs(cluster), shared_files(run.context, config.local_root())
    await asyncio.to_thread(check_shared, client, specs, files)
    if config.engine.tensor_parallel_size > 1 or config.planner.enabled:
        await asyncio.to_thread(check_numbering, client, specs, cluster.devices_per_host)


def shared_files(context: RunContext, root: Path | None) -> list[SharedFile]:
    """One file in every folder that workers share. `root`: None if it is a URL."""
    files = [
        SharedFile(
            path=f"{context.weights_dir}/{OWNER}",
            where="keep.weights_dir",
            cure="set it to a folder that all hosts share",
            roles=("rollout", "learner"),
        ),
        SharedFile(
            path=f"{context.model_path}/config.json",
            where="the model's folder",
            cure=SAME_MODEL,
            roles=("control", "rollout", "learner"),  # the first renders prompts
        ),
    ]
    if context.judge_model_path:
        path = f"{context.judge_model_path}/config.json"
        files.append(
            SharedFile(path=path, where="the judge's folder", cure=SAME_MODEL, roles=("judge",))
        )
    if root is not None:
        writers = ("rollout",) if context.environments else ()  # of the turns of episodes
        files.append(
            SharedFile(
                path=str(root / context.run_id / layout.MANIFEST),
                where="keep.artifact_root",
                cure="set it to a folder that all hosts share, or to an object store",
                roles=("control", "learner", *writers),
            )
        )
    return files
