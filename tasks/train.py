"""The training stages: accumulate gradients over accepted groups, update the policy once, publish
its weights through the gate.

sample buffer -> groups -> balanced over the ranks -> gradients (sums) -> one reduction, one update
-> safetensors -> engines
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts import layout
from artifacts.records import Group, Span, WeightsRef, pack, unpack
from artifacts.store import Store
from tasks.cluster.actors import ActorLost, Remote
from tasks.engines.base import Attestation, EngineLost
from tasks.engines.remote import RemoteEngine
from tasks.learner.dealing import GroupPart
from tasks.learner.streaming import Share, Split, StreamedAccumulation, accumulate_split, one_shot
from tasks.learner.trainer import AccumulateReport, UpdateReport
from tasks.learner.weight_sync import check_gate, check_tensors
from tasks.plan import RunContext, StepPlan, store_of
from tasks.sample_stream import SampleStream, aborting
from tasks.scheduling.stream_training import ScaleDown

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReport:
    """What accumulation did in a round; the gradients stay with the learners."""

    ranks: tuple[
        AccumulateReport, ...
    ]  # one per rank; all zero if the step had been updated before
    spans: tuple[Span, ...]
    num_groups_streamed: int = 0  # groups trained before the round was closed


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """What the update did."""

    update: UpdateReport
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """The version that the engines sample with now."""

    weights: WeightsRef
    # mean absolute difference of the probes' log-probabilities, engines against learner; None
    # where no gate compares them
    probe_difference_nats: float | None
    gate_s: float  # the comparison; what engines and learner attest is made while the engines load
    spans: tuple[Span, ...]


@task(
    name="accumulate-gradients",
    task_run_name="gradients-{plan.step}",
    cache_policy=NO_CACHE,
    tags=["train"],
)
def accumulate_gradients(plan: StepPlan) -> GradientReport:
    """Train on the accepted groups of the round as far as their gradients; where devices are freed,
    while the others generate."""
    stream = SampleStream.connect(plan)
    return asyncio.run(aborting(stream, "training", _accumulate(plan, stream)))


async def _accumulate(plan: StepPlan, stream: SampleStream) -> GradientReport:
    """Follow the split of an earlier attempt if there is one, else make one. What a lost attempt
    accumulated is dropped."""
    run, store = plan.run, store_of(plan)
    ranks = await fresh_ranks(run, plan.step)
    split = read_split(store, plan.step)
    if split is None:
        reports, num_streamed = await _stream(plan, stream, ranks)
    else:
        groups = [heard async for heard in _heard(plan, stream) if isinstance(heard, Group)]
        reports, num_streamed = await accumulate_split(ranks, groups, split), 0
    busy = {name: report.busy for name, report in zip(run.learners, reports, strict=True)}
    return GradientReport(
        ranks=reports, spans=_spans(run, "train", busy), num_groups_streamed=num_streamed
    )


async def _stream(
    plan: StepPlan, stream: SampleStream, ranks: Sequence[LearnerCalls]
) -> tuple[tuple[AccumulateReport, ...], int]:
    """Groups to freed ranks as they are accepted, the rest to all ranks at the end; the reports by
    rank, and how many were early."""
    run, store = plan.run, store_of(plan)

    async def record(split: Split) -> None:
        await asyncio.to_thread(write_split, store, plan.step, split)

    async with asyncio.TaskGroup() as tasks:
        accumulation = StreamedAccumulation(
            ranks, tasks, plan.round.accept_prompts, run.row_tokens, run.flat_groups_cost
        )
        async for heard in _heard(plan, stream):
            if isinstance(heard, ScaleDown):
                for name in heard.learners:
                    accumulation.free(run.learners.index(name))
            else:
                await accumulation.offer([heard])
        return await accumulation.finish(record), accumulation.num_streamed


async def _heard(plan: StepPlan, stream: SampleStream) -> AsyncIterator[Group | ScaleDown]:
    """What the round says, its groups checked: the one way into training but for a replay."""
    async for heard in stream.drain("groups"):
        if isinstance(heard, Group):
            _check_versions(plan, heard)
        yield heard


def _check_versions(plan: StepPlan, group: Group) -> None:
    """ValueError for a token that weights sampled which the round does not allow."""
    for response in group.responses:
        found = {span.version for span in response.generated.versions}
        if not found <= set(plan.versions):
            step, name = plan.step, response.generated.response_id
            raise ValueError(
                f"step {step} must train tokens of weight versions {[*plan.versions]} alone, "
                f"response {name} has versions {sorted(found)}; delete "
                f"{layout.round_file(step)} and {layout.split_file(step)} in the run's folder, "
                "then resume: it is made again"
            )


@dataclass(frozen=True, slots=True)
class LearnerCalls:
    """A learner rank that accumulates for one step."""

    remote: Remote
    step: int
    deadline_s: float

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        """All zero if the step has been updated already."""
        answer: bytes = await self.remote.call(
            "accumulate", self.step, pack(parts), deadline_s=self.deadline_s
        )
        return unpack(answer) if answer else AccumulateReport()


async def fresh_ranks(run: RunContext, step: int) -> list[LearnerCalls]:
    """The learner's ranks, with nothing accumulated for this step."""
    deadline_s = run.deadlines.learner_call_s
    ranks = learner_ranks(run)
    await asyncio.gather(*(rank.call("discard", deadline_s=deadline_s) for rank in ranks))
    return [LearnerCalls(rank, step, deadline_s) for rank in ranks]


async def replay_gradients(
    run: RunContext, store: Store, step: int, groups: Sequence[Group]
) -> None:
    """The gradients of a recorded step again, bit by bit: every rank gets what it got then, call by
    call."""
    ranks = await fresh_ranks(run, step)
    split = read_split(store, step) or one_shot(groups, len(ranks), run.flat_groups_cost)
    await accumulate_split(ranks, groups, split)


def write_split(store: Store, step: int, split: Split) -> None:
    """Record how the step's groups are dealt."""
    store.write(
        layout.split_file(step), json.dumps([[share.rank, share.parts] for share in split]).encode()
    )


def read_split(store: Store, step: int) -> Split | None:
    """How the step's groups were dealt, or None if that was not decided."""
    name = layout.split_file(step)
    if not store.exists(name):
        return None
    shares = json.loads(store.read(name))
    return tuple(
        Share(rank=rank, parts=tuple((prompt_id, tuple(places)) for prompt_id, places in parts))
        for rank, parts in shares
    )


@task(
    name="update-policy", task_run_name="update-{plan.step}", cache_policy=NO_CACHE, tags=["train"]
)
def update_policy(plan: StepPlan, gradients: GradientReport) -> PolicyReport:
    """One synchronous update. Idempotent: the learners answer a repeated call with the report of
    the update they made."""
    updates = asyncio.run(update_on_ranks(plan.run, plan.step))
    busy = {rank: update.busy for rank, update in zip(plan.run.learners, updates, strict=True)}
    return PolicyReport(update=updates[0], spans=_spans(plan.run, "update", busy))


async def update_on_ranks(run: RunContext, step: int) -> list[UpdateReport]:
    """Collective over all ranks; every rank reports the same numbers."""
    calls = (
        rank.call("update", step, deadline_s=run.deadlines.learner_call_s)
        for rank in learner_ranks(run)
    )
    return [unpack(answer) for answer in await asyncio.gather(*calls)]


@task(
    name="publish-weights",
    task_run_name="publish-{plan.step}",
    cache_policy=NO_CACHE,
    tags=["publish"],
)
def publish_weights(plan: StepPlan, policy: PolicyReport) -> PublishReport:
    """Export the new version, load it into every engine, and let the gate compare."""
    return asyncio.run(publish(plan.run))


async def publish(run: RunContext) -> PublishReport:
    """The learner's version -> file -> all engines -> gate, which is off without probes.

    The first rank writes the file, which the engines read back, while all others, whose devices
    are free, attest: so the gate sees every rank. Raises GateFailed with the tensor's name.
    """
    started_s = time.time()
    ranks = learner_ranks(run)
    weights, attested = await asyncio.gather(_export(run, ranks[0]), _attestations(run, ranks))
    for name, rank in attested.items():
        check_tensors(name, rank, attested[run.learners[-1]])
    loaded = await load_engines(run, weights)
    gate_started_s = time.time()
    difference = _passed(run, loaded, attested[run.learners[-1]]) if attested else None
    keep_last_versions(Path(run.weights_dir), weights.version)
    return PublishReport(
        weights=weights,
        probe_difference_nats=difference,
        gate_s=time.time() - gate_started_s,
        spans=_spans(
            run,
            "publish",
            dict.fromkeys((run.learners[0], *run.engines), ((started_s, time.time()),)),
        ),
    )


def _passed(
    run: RunContext, loaded: Mapping[str, Attestation], expected: Attestation
) -> float | None:
    """Have every engine pass the gate; the largest difference of the probes, None if no engine
    computes any."""
    differences = {
        name: check_gate(name, engine, expected, run.gate_tolerance_nats)
        for name, engine in loaded.items()
    }
    silent = [name for name, difference in differences.items() if difference is None]
    if silent:
        names = ",".join(silent)
        logger.info("gate compared tensors alone: no log-probabilities from engines=%s", names)
    told = [difference for difference in differences.values() if difference is not None]
    return max(told, default=None)


async def load_engines(run: RunContext, weights: WeightsRef) -> Mapping[str, Attestation]:
    """Load a version into every engine; what they attest, by engine."""
    calls = (engine.load_weights(weights, run.probes) for engine in engines_of(run, run.engines))
    return dict(zip(run.engines, await asyncio.gather(*calls), strict=True))


def engines_of(run: RunContext, names: Sequence[str]) -> list[RemoteEngine]:
    """These engines of the run, as they are now."""
    deadline_s = run.deadlines.engine_call_s
    return [RemoteEngine.connect(run.run_id, name, deadline_s) for name in names]


async def rest_engines(run: RunContext, names: Sequence[str]) -> None:
    """Have these engines give their GPUs to the learners until the next load, where the run says
    so."""
    if run.engines_rest:
        await asyncio.gather(*(_rest_engine(run, name) for name in names))


async def _rest_engine(run: RunContext, name: str) -> None:
    """One whose worker is gone holds no GPU; the next load hears of it. Raises EngineLost for one
    that is there and does not rest."""
    try:
        (engine,) = engines_of(run, (name,))
        await engine.rest()
    except (ActorLost, EngineLost) as error:
        if not isinstance(error, ActorLost) and not isinstance(error.__cause__, ActorLost):
            raise
        logger.warning("engine=%s has nothing to give back: %s", name, error)


async def _export(run: RunContext, rank: Remote) -> WeightsRef:
    weights: WeightsRef = await rank.call(
        "export_weights", run.weights_dir, deadline_s=run.deadlines.learner_call_s
    )
    return weights


async def _attestations(run: RunContext, ranks: Sequence[Remote]) -> dict[str, Attestation]:
    """What every rank but the one that writes the file holds, by name; nothing without a gate.

    The last rank alone is asked the probes: ranks with equal tensors compute the same.
    """
    if not run.probes:
        return {}
    asked = list(zip(run.learners, ranks, strict=True))[1:] or [(run.learners[0], ranks[0])]
    probes = [()] * (len(asked) - 1) + [run.probes]
    calls = (_attested(run, rank, part) for (_, rank), part in zip(asked, probes, strict=True))
    return dict(zip((name for name, _ in asked), await asyncio.gather(*calls), strict=True))


async def _attested(
    run: RunContext,
    rank: Remote,
    probes: tuple[tuple[int, ...], ...],
) -> Attestation:
    answer = await rank.call("attest", pack(probes), deadline_s=run.deadlines.learner_call_s)
    version, fingerprints, logprobs = unpack(answer)
    return Attestation(version=version, fingerprints=fingerprints, probe_logprobs=logprobs)


def keep_last_versions(directory: Path, version: int, keep: int = 2) -> None:
    """Delete handed-over versions that no engine can ask for any more."""
    for path in directory.glob("*.safetensors"):
        if path.stem.isdigit() and int(path.stem) <= version - keep:
            path.unlink(missing_ok=True)


def learner_ranks(run: RunContext) -> list[Remote]:
    """The learner's ranks, in order."""
    return [Remote.connect(run.run_id, name) for name in run.learners]


def _spans(
    run: RunContext, kind: str, busy: Mapping[str, Sequence[tuple[float, float]]]
) -> tuple[Span, ...]:
    """What these actors did, from their own clocks: Unix seconds, (start, end)."""
    return tuple(
        Span(device=device, actor=actor, kind=kind, start_s=start_s, end_s=end_s)
        for actor, times in busy.items()
        for start_s, end_s in times
        for device in run.devices_of(actor)
    )
