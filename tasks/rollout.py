"""The rollout stage: one coordinator task that runs a round over the engines.

recorded responses, launches ─▶ engines ─▶ sample buffer ─▶ (rewards) ─▶ scores
─▶ scheduler ─▶ accepted groups ─▶ sample buffer
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts.records import Group, Prompt, prompt_of
from artifacts.tables import ResponseRow
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost, EngineStats
from tasks.engines.remote import EngineClient
from tasks.learner.collective import baseline_moments, record_moments
from tasks.learner.samples import advantages_of
from tasks.progress import ProgressReporter, shown_progress
from tasks.rounds.driver import drive_round
from tasks.rounds.figures import response_rows
from tasks.rounds.records import RoundInputs, RoundResult
from tasks.rounds.report import (
    RolloutReport,
    close_round,
    held_tokens_before,
    read_round,
    round_report,
    window_record,
)
from tasks.run.actor_handles import engines_of, sleep_engines
from tasks.run.partial_responses import partial_responses, written_tokens
from tasks.run.prompts import is_heldout, prompts_of
from tasks.run.run_context import RunContext, StepPlan, journal_of, store_of
from tasks.run.sample_buffer import GENERATED, GROUPED
from tasks.run.sample_stream import SampleStream, aborting, round_key
from tasks.run.stream_workers import workers_of_round
from tasks.scheduling.seeding import SeedingWindow
from tasks.scheduling.stream_training import (
    HISTORY_ROUNDS,
    AllAccepted,
    DeviceGroup,
    FreesDevices,
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
    separable_groups,
)

EMPTY_S = 10.0  # seconds without any engine, after which the run's own are recreated


@task(
    name="run-rollout",
    task_run_name="rollout-{plan.round.kind}-{plan.step}",
    cache_policy=NO_CACHE,
)
def run_rollout(plan: StepPlan) -> RolloutReport:
    """Run the step's round, or read it back if it was closed before."""
    stream = SampleStream.connect(plan)
    return asyncio.run(aborting(stream, "rollout", roll_out(plan, stream)))


async def roll_out(plan: StepPlan, stream: SampleStream) -> RolloutReport:
    """Play the round, or read it back, and pass its groups to the learner; returns the report."""
    report = read_round(store_of(plan), plan.step)
    if report is None:
        report = await play_round(plan, stream)
    elif plan.trains:
        if not plan.overlaps:
            await sleep_engines(plan.run, plan.run.engines)
        for group in journal_of(plan).read_groups(plan.step):
            await stream.put(GROUPED, [group])
    await stream.close(GENERATED)
    await stream.close(GROUPED)
    return report


async def play_round(plan: StepPlan, stream: SampleStream) -> RolloutReport:
    """Play the round, hand its devices over to training, record the result, and close the round."""
    run = plan.run
    prompts = prompts_of(run, plan.round.candidates)
    async with shown_progress(plan) as progress:
        inputs = round_inputs(plan, prompts, stream, progress)
        began_s = time.time()
        before = [] if run.learners else await _readings(plan)
        with written_tokens(run) as write:
            result = await drive_round(replace(inputs, on_new_tokens=write))
    if plan.trains and not plan.overlaps:
        await sleep_engines(run, run.engines)
    if plan.trains:  # learners may begin: writing the records takes a moment
        over: list[Group | ScaleDown | AllAccepted] = [AllAccepted()]
        if is_streamed(plan):
            over.insert(0, ScaleDown(engines=run.engines, learners=run.learners))
        await stream.put(GROUPED, over)
    devices = {**{name: run.devices_of(name) for name in run.engines}, **result.joined}
    report = round_report(
        result,
        await _readings(plan),
        devices,
        is_evaluation=plan.is_evaluation,
    )
    earlier = sum(reading.num_preemptions for reading in before)
    report = replace(report, num_preemptions=max(0, report.num_preemptions - earlier))
    report = with_record(report, inputs, result, began_s)
    await stream.close(GENERATED)
    _record(plan, prompts, result, report)
    return report


def round_inputs(
    plan: StepPlan, prompts: Mapping[str, Prompt], stream: SampleStream, progress: ProgressReporter
) -> RoundInputs:
    """The inputs of the step's round, on the engines and the sample buffer of the run."""

    async def accept(group: Group) -> None:
        progress.accept(group)
        if plan.trains:
            await stream.put(GROUPED, [group])

    async def free(decision: ScaleDown) -> None:
        await sleep_engines(plan.run, decision.engines)
        await stream.put(GROUPED, [decision])

    client = client_of(plan)
    return RoundInputs(
        plan=plan.round,
        versions=plan.versions,
        prompts=prompts,
        scheduler=progress.scheduler,
        engines=engines_of(plan.run, plan.run.engines, client),
        feed=stream,
        sampling=plan.run.sampling,
        recorded=tuple(row.response for row in journal_of(plan).read(plan.step)),
        seed=plan.run.seed,
        deadline_s=plan.run.deadlines.progress_s,
        empty_s=EMPTY_S,
        on_finished=progress.finish,
        on_accept=accept,
        stream_trainer=with_window(plan, _stream_trainer(plan)),
        balancing=plan.run.balancing,
        on_freed=free,
        attempt=round_key(plan),
        adopted=plan.adopted,
        leaves_running=plan.leaves_running,
        publications=stream if plan.overlaps else None,
        elastic_workers=workers_of_round(plan.run, stream, client),
        begun=partial(partial_responses, plan),
        report_tokens=plan.run.engine.report_tokens,
    )


def client_of(plan: StepPlan) -> EngineClient:
    """The name under which a round, or an evaluation beside it, calls the engines."""
    return EngineClient.EVALUATION if plan.is_evaluation else EngineClient.ROUND


def is_streamed(plan: StepPlan) -> bool:
    """True if accepted groups may be trained before the round closes."""
    return plan.run.stream_trainer.enabled and plan.trains


def _stream_trainer(plan: StepPlan) -> StreamTrainer:
    """The stream trainer of this round, which may free no device at all."""
    run = plan.run
    if not is_streamed(plan):
        return StreamTrainer(StreamTrainerConfig(), groups=(), accept_prompts=0)
    # where training overlaps generation, no engine makes room for it
    generating = () if plan.overlaps else run.engines
    return StreamTrainer(
        run.stream_trainer,
        device_groups_of(run, generating),
        plan.round.accept_prompts,
        held_tokens_before(store_of(plan), plan.step, HISTORY_ROUNDS),
        devices_per_engine=max((len(run.devices_of(name)) for name in generating), default=1),
    )


def with_window(plan: StepPlan, alone: FreesDevices) -> FreesDevices:
    """The policy that frees devices in this step's round: `alone` (the stream trainer), within a
    `SeedingWindow` if the plan has a window."""
    if plan.window is None:
        return alone
    groups = device_groups_of(plan.run, plan.run.engines)
    return SeedingWindow(plan.window.window_s, groups, alone)


def device_groups_of(run: RunContext, engines: tuple[str, ...]) -> tuple[DeviceGroup, ...]:
    """The separable groups of these engines' and the learners' devices. Each learner rank is a
    communication group of its own, because it accumulates gradients alone."""
    generating = {name: frozenset(run.devices_of(name)) for name in engines}
    training = {name: frozenset(run.devices_of(name)) for name in run.learners}
    return separable_groups(generating, training, [(name,) for name in run.learners])


def with_record(
    report: RolloutReport, inputs: RoundInputs, result: RoundResult, began_s: float
) -> RolloutReport:
    """The report with the record of the seeding window, if any. began_s: Unix seconds."""
    window = inputs.stream_trainer
    if not isinstance(window, SeedingWindow):
        return report
    return replace(report, window=window_record(window, result, began_s))


async def _readings(plan: StepPlan) -> list[EngineStats]:
    """The readings of the engines that live. Their counters begin with a load of weights, so that
    without one between rounds those of earlier rounds are in them."""
    readings = await asyncio.gather(*(_reading(plan, name) for name in plan.run.engines))
    return [reading for reading in readings if reading is not None]


async def _reading(plan: StepPlan, name: str) -> EngineStats | None:
    """The reading of an engine without responses of an evaluation beside; None if it died."""
    try:
        (engine,) = engines_of(plan.run, (name,), client_of(plan))
        reading = await engine.stats()
    except (ActorLost, EngineLost):
        return None
    progress = {
        name: num_tokens
        for name, num_tokens in reading.progress.items()
        if is_heldout(prompt_of(name)) == plan.is_evaluation
    }
    return replace(reading, progress=progress)


def _record(
    plan: StepPlan, prompts: Mapping[str, Prompt], result: RoundResult, report: RolloutReport
) -> None:
    """Write the carried responses for the next round, the tables, then the closing file."""
    journal, store = journal_of(plan), store_of(plan)
    carried = [
        ResponseRow(
            step=plan.step + 1,
            kind=plan.round.kind,
            prompt=prompts[response.generated.prompt_id],
            response=response,
        )
        for response in result.carried_responses
    ]
    journal.append(plan.step + 1, carried)
    rows = rows_of(plan, prompts, result)
    if not plan.is_evaluation:
        record_moments(result.groups, store, plan.step, plan.run.learner)
    journal.finalise(plan.step, rows, result.groups, report.spans)
    close_round(store, plan.step, report)


def rows_of(
    plan: StepPlan, prompts: Mapping[str, Prompt], result: RoundResult
) -> list[ResponseRow]:
    """The round's responses as rows of the table; those of an evaluation have no advantage."""
    learner = plan.run.learner
    trained = () if plan.is_evaluation else result.groups
    moments = baseline_moments(trained, store_of(plan), plan.step, learner) if trained else None
    advantages = advantages_of(trained, learner.advantage, learner.overlong, moments)
    return response_rows(plan.round, prompts, result, advantages, is_evaluation=plan.is_evaluation)
