"""The rollout stage: one coordinator task that runs a round over the engines.

    recorded responses + launches -> engines -> sample buffer -> (rewards) -> scores -> scheduler ->
    accepted groups -> sample buffer

A round that was closed before is not run again: its groups are read back and go straight to
training. The closing is one atomic write (`rounds/00007.json`), after the responses and groups are
on disk and before anything is trained on them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from distributed import get_client
from prefect import task
from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client as prefect_client

from artifacts import layout
from artifacts.records import Generated, Group, Prompt, Response, Score, Span, response_id
from artifacts.reports.timeline import Interval
from artifacts.tables import ResponseRow
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost, EngineStats
from tasks.engines.remote import RemoteEngine
from tasks.learner.samples import trained_advantages
from tasks.plan import StepPlan, journal_of, prompts_of, store_of
from tasks.rounds.driver import drive_round
from tasks.rounds.figures import (
    filtered_ids,
    ledger_of,
    reward_waits,
    rollout_spans,
    trained_ids,
)
from tasks.rounds.records import RoundInputs, RoundResult
from tasks.sample_stream import SampleStream, aborting, round_key
from tasks.scheduling.acceptance import acceptance_figures, launched_of
from tasks.scheduling.ledger import fate_of
from tasks.scheduling.rounds import make_scheduler
from tasks.scheduling.stream_training import (
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
    device_groups,
)
from tasks.train import rest_engines

PROGRESS_EVERY_S = 2.0
HISTORY_ROUNDS = 8  # rounds whose response lengths project those of the next


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """What a round brought home; kept as JSON when the round closes."""

    accepted: tuple[str, ...]  # prompt ids in training order
    deferred: tuple[str, ...]  # prompt ids for the long-prompt queue
    dropped: tuple[str, ...]  # prompt ids given up after infrastructure failures
    filtered: tuple[str, ...]  # prompt ids of groups whose rewards agreed, replaced by others
    tokens: Mapping[str, int]  # generated tokens by fate
    lengths: tuple[int, ...]  # tokens of every response that ended by itself or at the bound
    acceptance: Mapping[str, float]  # accepted against launched responses, by name of the metric
    num_preemptions: int  # of all engines in this round, those of aborted responses included
    spans: tuple[Span, ...]  # when each engine had a response to generate
    started_s: float  # first submission, Unix seconds
    finished_s: float  # last response
    kv_usage_max: float = 0.0  # the fullest that an engine's KV cache was in this round, 0..1
    num_migrated: int = 0  # responses that went on in another engine
    freed: tuple[str, ...] = ()  # learners whose devices were freed in mid-round
    reward_waits: tuple[Interval, ...] = ()  # when it waited for verdicts alone


@dataclass(frozen=True, slots=True)
class StreamFeed:
    """The driver's view of the reward stage."""

    stream: SampleStream

    async def publish(self, generated: Sequence[Generated]) -> None:
        await self.stream.put("generated", generated)

    async def scored(self, wait_s: float) -> list[Score]:
        scores, _ = await self.stream.take("scores", max_items=1024, wait_s=wait_s)
        return scores


@task(
    name="run-rollout",
    task_run_name="rollout-{plan.round.kind}-{plan.step}",
    cache_policy=NO_CACHE,
    tags=["rollout"],
)
def run_rollout(plan: StepPlan) -> RolloutReport:
    """Run the step's round, or read it back if it was closed before."""
    stream = SampleStream.connect(plan)
    return asyncio.run(aborting(stream, "rollout", _rollout(plan, stream)))


async def _rollout(plan: StepPlan, stream: SampleStream) -> RolloutReport:
    report = read_round(plan)
    if report is not None:
        await rest_engines(plan.run, plan.run.engines)
        await stream.put("groups", journal_of(plan).read_groups(plan.step))
    else:
        report = await _generate(plan, stream)
    await stream.close("generated")
    await stream.close("groups")
    return report


async def _generate(plan: StepPlan, stream: SampleStream) -> RolloutReport:
    journal, prompts = journal_of(plan), prompts_of(plan.run, plan.round.candidates)
    finished: list[Generated] = []
    freed: list[str] = []
    inputs = _inputs(plan, prompts, stream, finished, freed)
    progress = asyncio.create_task(_show_progress(plan, finished))
    try:
        result = await drive_round(inputs)
    finally:
        progress.cancel()
        await asyncio.gather(
            progress, return_exceptions=True
        )  # a picture that failed is no reason to fail the round
    if not plan.is_evaluation:
        await rest_engines(plan.run, plan.run.engines)
    if (
        inputs.stream_trainer.is_enabled
    ):  # nobody generates any more, and writing the records takes a moment
        await stream.put(
            "groups", [ScaleDown(engines=plan.run.engines, learners=plan.run.learners)]
        )
    report = replace(_report(plan, result, await _readings(plan)), freed=tuple(freed))
    await stream.close("generated")
    journal.finalise(plan.step, _rows(plan, prompts, result), result.groups, report.spans)
    _close_round(plan, report)
    return report


def _inputs(
    plan: StepPlan,
    prompts: Mapping[str, Prompt],
    stream: SampleStream,
    finished: list[Generated],
    freed: list[str],
) -> RoundInputs:
    """The round; what it finishes and which learners it frees is added to the two lists."""

    async def accept(group: Group) -> None:
        if not plan.is_evaluation:  # nobody trains on those
            await stream.put("groups", [group])

    async def free(decision: ScaleDown) -> None:
        await rest_engines(plan.run, decision.engines)
        freed.extend(decision.learners)
        await stream.put("groups", [decision])

    return RoundInputs(
        plan=plan.round,
        versions=plan.versions,
        prompts=prompts,
        scheduler=make_scheduler(plan.round),
        engines=_engines(plan),
        feed=StreamFeed(stream),
        sampling=plan.run.sampling,
        recorded=tuple(row.response for row in journal_of(plan).read(plan.step)),
        seed=plan.run.seed,
        deadline_s=plan.run.deadlines.progress_s,
        on_finished=finished.extend,
        on_accept=accept,
        stream_trainer=_stream_trainer(plan),
        on_freed=free,
        attempt=round_key(plan),
    )


def _stream_trainer(plan: StepPlan) -> StreamTrainer:
    """The policy of this round; of an evaluation nothing is trained, so that nothing is freed."""
    run = plan.run
    if plan.is_evaluation or not run.stream_trainer.enabled:
        return StreamTrainer(StreamTrainerConfig(), groups=(), accept_prompts=0)
    engines = {name: frozenset(run.devices_of(name)) for name in run.engines}
    learners = {name: frozenset(run.devices_of(name)) for name in run.learners}
    data_parallel = [(name,) for name in run.learners]  # a rank accumulates alone
    groups = device_groups(engines, learners, data_parallel)
    return StreamTrainer(
        run.stream_trainer, groups, plan.round.accept_prompts, _recent_lengths(plan)
    )


def _recent_lengths(plan: StepPlan) -> tuple[int, ...]:
    """Response lengths of the last rounds, tokens."""
    steps = range(max(1, plan.step - HISTORY_ROUNDS), plan.step)
    return tuple(tokens for step in steps for tokens in _round_of(plan, step).get("lengths", ()))


def _engine(plan: StepPlan, name: str) -> RemoteEngine:
    return RemoteEngine.connect(plan.run.run_id, name, plan.run.deadlines.engine_call_s)


def _engines(plan: StepPlan) -> list[RemoteEngine]:
    return [_engine(plan, name) for name in plan.run.engines]


async def _readings(plan: StepPlan) -> list[EngineStats]:
    """Of the engines that answer; one that died meanwhile has none, and its round is complete all
    the same."""
    readings = await asyncio.gather(*(_reading(plan, name) for name in plan.run.engines))
    return [reading for reading in readings if reading is not None]


async def _reading(plan: StepPlan, name: str) -> EngineStats | None:
    try:
        return await _engine(plan, name).stats()
    except (ActorLost, EngineLost):
        return None


async def _show_progress(plan: StepPlan, finished: Sequence[Generated]) -> None:
    """How many responses have finished: a progress bar in the Prefect UI, and metadata on the Dask
    scheduler for the terminal."""
    dask_client, launched = get_client(), len(plan.round.prompts) * plan.round.launch_per_prompt
    async with (
        prefect_client() as api
    ):  # one for all updates: making one takes an engine's core for 20 ms
        artifact = await acreate_progress_artifact(
            progress=0.0,
            key=f"rollout-{artifact_key(plan.run.run_id)}",
            description=f"Step {plan.step}: responses of {launched} that have finished",
        )
        while True:
            await asyncio.to_thread(
                dask_client.set_metadata, progress_key(plan.run.run_id), (len(finished), launched)
            )
            await aupdate_progress_artifact(
                artifact_id=artifact,
                progress=min(100.0, 100.0 * len(finished) / launched),
                client=api,
            )
            await asyncio.sleep(PROGRESS_EVERY_S)


def artifact_key(run_id: str) -> str:
    """The run's name as Prefect accepts it in an artifact's key: lowercase letters, digits and
    dashes."""
    return re.sub(r"[^a-z0-9]+", "-", run_id.lower())


def progress_key(run_id: str) -> list[str]:
    """Where the scheduler's metadata has (finished, launched) of the round that runs."""
    return ["rollflow", run_id, "progress"]


def _report(plan: StepPlan, result: RoundResult, readings: Sequence[EngineStats]) -> RolloutReport:
    ended = [response for response in result.generated if response.finish_reason != "aborted"]
    rewards = {response_id(score.prompt_id, score.index): score.reward for score in result.scores}
    trained, filtered = trained_ids(result), filtered_ids(result)
    ledger = ledger_of(result, is_evaluation=plan.is_evaluation)
    return RolloutReport(
        accepted=tuple(group.prompt.prompt_id for group in result.groups),
        deferred=result.deferred,
        dropped=result.dropped,
        filtered=result.filtered,
        tokens={str(fate): count for fate, count in ledger.items()},
        lengths=tuple(len(response.token_ids) for response in ended),
        acceptance=acceptance_figures(
            launched_of(result.generated, rewards, trained=trained, filtered=filtered)
        ),
        num_preemptions=sum(reading.num_preemptions for reading in readings),
        kv_usage_max=max((reading.kv_usage_max for reading in readings), default=0.0),
        spans=rollout_spans(result, {name: plan.run.devices_of(name) for name in plan.run.engines}),
        num_migrated=len(result.migrated),
        reward_waits=reward_waits(result),
        started_s=min((response.submitted_s for response in result.generated), default=0.0),
        finished_s=max((response.finished_s for response in result.generated), default=0.0),
    )


def _rows(plan: StepPlan, prompts: Mapping[str, Prompt], result: RoundResult) -> list[ResponseRow]:
    scores = {(score.prompt_id, score.index): score for score in result.scores}
    trained, filtered = trained_ids(result), filtered_ids(result)
    advantages = _advantages(plan, result.groups)
    return [
        ResponseRow(
            step=plan.step,
            kind=plan.round.kind,
            prompt=prompts[response.prompt_id],
            response=Response(
                generated=response,
                score=scores.get((response.prompt_id, response.index)),
            ),
            fate=fate_of(response, trained, filtered, is_evaluation=plan.is_evaluation),
            advantage=advantages.get(response.response_id),
        )
        for response in result.generated
    ]


def _advantages(plan: StepPlan, groups: Sequence[Group]) -> dict[str, float]:
    """Advantages by response id, as the learner will compute them; none of an evaluation."""
    if plan.is_evaluation:
        return {}
    run, advantages = plan.run, dict[str, float]()
    for group in groups:
        advantages |= trained_advantages(group, run.advantage, run.overlong)
    return advantages


def _close_round(plan: StepPlan, report: RolloutReport) -> None:
    store_of(plan).write(
        layout.round_file(plan.step), json.dumps(asdict(report), indent=1).encode()
    )


def read_round(plan: StepPlan) -> RolloutReport | None:
    """The report of a round that is closed, or None."""
    raw = _round_of(plan, plan.step)
    if not raw:
        return None
    lists = {name: tuple(value) for name, value in raw.items() if isinstance(value, list)}
    spans = tuple(Span(**span) for span in raw["spans"])
    waits = tuple((start_s, end_s) for start_s, end_s in raw.get("reward_waits", ()))
    return RolloutReport(**(raw | lists | {"spans": spans, "reward_waits": waits}))


def _round_of(plan: StepPlan, step: int) -> dict[str, Any]:  # Any: JSON values
    """The kept report of a closed round, empty if there is none."""
    store, name = store_of(plan), layout.round_file(step)
    raw: dict[str, Any] = json.loads(store.read(name)) if store.exists(name) else {}
    return raw
