"""The training stages: accumulate gradients over accepted groups, update the policy once, publish its weights through the gate.

sample buffer -> groups -> balanced over the ranks -> gradients (sums) -> one reduction, one update -> safetensors -> engines
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts.records import Group, Span, WeightsRef, pack, unpack
from tasks.cluster.actors import Remote
from tasks.engines.base import Attestation
from tasks.engines.remote import RemoteEngine
from tasks.learner.packing import balance
from tasks.learner.trainer import AccumulateReport, UpdateReport
from tasks.learner.weight_sync import check_gate
from tasks.plan import RunContext, StepPlan
from tasks.sample_stream import SampleStream, aborting
from tasks.scheduling.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReport:
    """What accumulation did in a round; the gradients stay with the learners."""

    ranks: tuple[AccumulateReport, ...]  # one per rank; empty if the step had been updated before
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """What the update did."""

    update: UpdateReport
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """The version that the engines sample with now."""

    weights: WeightsRef
    probe_difference_nats: float  # mean absolute difference of the probes' log-probabilities, engines against learner
    gate_s: float  # the comparison; what engines and learner attest is made while the engines load
    spans: tuple[Span, ...]


@task(name="accumulate-gradients", task_run_name="gradients-{plan.step}", cache_policy=NO_CACHE, tags=["train"])
def accumulate_gradients(plan: StepPlan) -> GradientReport:
    """Train on the accepted groups of the round as far as their gradients."""
    stream = SampleStream.connect(plan)
    return asyncio.run(aborting(stream, "training", _accumulate(plan, stream)))


async def _accumulate(plan: StepPlan, stream: SampleStream) -> GradientReport:
    groups: list[Group] = []
    closed = False
    while not closed:
        arrived, closed = await stream.take("groups", max_items=256)
        groups += arrived
    reports = await accumulate_on_ranks(plan.run, plan.step, groups)
    busy = {rank: report.busy for rank, report in zip(plan.run.learners, reports, strict=False)}
    return GradientReport(ranks=reports, spans=_spans(plan.run, "train", busy))


async def accumulate_on_ranks(run: RunContext, step: int, groups: Sequence[Group]) -> tuple[AccumulateReport, ...]:
    """Give every rank its share, by predicted cost and the same for the same groups; gradients of an earlier attempt are dropped."""
    ranks = learner_ranks(run)
    deadline_s = run.deadlines.learner_call_s
    await asyncio.gather(*(rank.call("discard", deadline_s=deadline_s) for rank in ranks))
    shares = balance(tuple(groups), len(ranks), flat_costs=run.flat_groups_cost)
    calls = (rank.call("accumulate", step, pack(tuple(share)), deadline_s=deadline_s) for rank, share in zip(ranks, shares, strict=True))
    return tuple(unpack(answer) for answer in await asyncio.gather(*calls) if answer)


@task(name="update-policy", task_run_name="update-{plan.step}", cache_policy=NO_CACHE, tags=["train"])
def update_policy(plan: StepPlan, gradients: GradientReport) -> PolicyReport:
    """One synchronous update. Idempotent: the learners answer a repeated call with the report of the update they made."""
    updates = asyncio.run(update_on_ranks(plan.run, plan.step))
    busy = {rank: update.busy for rank, update in zip(plan.run.learners, updates, strict=True)}
    return PolicyReport(update=updates[0], spans=_spans(plan.run, "update", busy))


async def update_on_ranks(run: RunContext, step: int) -> list[UpdateReport]:
    """Collective over all ranks; every rank reports the same numbers."""
    calls = (rank.call("update", step, deadline_s=run.deadlines.learner_call_s) for rank in learner_ranks(run))
    return [unpack(answer) for answer in await asyncio.gather(*calls)]


@task(name="publish-weights", task_run_name="publish-{plan.step}", cache_policy=NO_CACHE, tags=["publish"])
def publish_weights(plan: StepPlan, policy: PolicyReport) -> PublishReport:
    """Export the new version, load it into every engine, and let the gate compare."""
    return asyncio.run(publish(plan.run))


async def publish(run: RunContext) -> PublishReport:
    """The learner's version -> file -> all engines -> gate, which is off without probes.

    Raises GateFailed with the tensor's name on a mismatch.
    """
    started_s = time.time()
    first_rank = Remote.connect(run.run_id, run.learners[0])
    weights: WeightsRef = await first_rank.call("export_weights", run.weights_dir, deadline_s=run.deadlines.learner_call_s)
    loading = asyncio.ensure_future(load_engines(run, weights))
    expected = await _learner_attestation(run, first_rank) if run.probes else None
    loaded, gate_started_s, difference = await loading, time.time(), 0.0
    if expected is not None:
        difference = max(check_gate(name, attested, expected, run.gate_tolerance_nats) for name, attested in loaded.items())
    keep_last_versions(Path(run.weights_dir), weights.version)
    return PublishReport(
        weights=weights,
        probe_difference_nats=difference,
        gate_s=time.time() - gate_started_s,
        spans=_spans(run, "publish", dict.fromkeys((run.learners[0], *run.engines), ((started_s, time.time()),))),
    )


async def load_engines(run: RunContext, weights: WeightsRef) -> Mapping[str, Attestation]:
    """Load a version into every engine, each with a sampling seed of its own; what they attest, by engine."""
    engines = [RemoteEngine.connect(run.run_id, name, run.deadlines.engine_call_s) for name in run.engines]
    calls = (
        engine.load_weights(weights, derive_seed(run.seed, "sampling", weights.version, engine.name), run.probes) for engine in engines
    )
    return dict(zip(run.engines, await asyncio.gather(*calls), strict=True))


async def _learner_attestation(run: RunContext, rank: Remote) -> Attestation:
    version, fingerprints, probes = unpack(await rank.call("attest", pack(run.probes), deadline_s=run.deadlines.learner_call_s))
    return Attestation(version=version, fingerprints=fingerprints, probe_logprobs=probes)


def keep_last_versions(directory: Path, version: int, keep: int = 2) -> None:
    """Delete handed-over versions that no engine can ask for any more."""
    for path in directory.glob("*.safetensors"):
        if path.stem.isdigit() and int(path.stem) <= version - keep:
            path.unlink(missing_ok=True)


def learner_ranks(run: RunContext) -> list[Remote]:
    """The learner's ranks, in order."""
    return [Remote.connect(run.run_id, name) for name in run.learners]


def _spans(run: RunContext, kind: str, busy: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[Span, ...]:
    """What these actors did, from their own clocks: Unix seconds, (start, end)."""
    return tuple(
        Span(device=device, actor=actor, kind=kind, start_s=start_s, end_s=end_s)
        for actor, times in busy.items()
        for start_s, end_s in times
        for device in run.devices_of(actor)
    )
