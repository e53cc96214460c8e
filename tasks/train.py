"""The training stages: accumulate gradients over accepted groups, update the policy, publish its
weights to the engines, and compare engines with the learner (weight check).

In a step of several updates the first stage only computes log-probabilities, and the second makes
gradients and updates in turn (tasks.learner.several_updates).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts.records import Running
from tasks.cluster.actors import Remote
from tasks.learner.collective import accumulate_round, update_all
from tasks.learner.publication import publish_version
from tasks.learner.reports import GradientReport, PolicyReport, PublishReport
from tasks.run.actor_handles import engines_of, learners_of
from tasks.run.run_context import RunContext, StepPlan, store_of
from tasks.run.sample_buffer import GROUPED
from tasks.run.sample_stream import BUFFER, SampleStream, aborting


@task(name="accumulate-gradients", task_run_name="gradients-{plan.step}", cache_policy=NO_CACHE)
def accumulate_gradients(plan: StepPlan) -> GradientReport:
    """Compute the gradients of the round's accepted groups, without an update of the policy. Where
    the stream trainer frees devices, this runs while other engines still generate."""
    run = plan.run
    stream = SampleStream.connect(plan)
    done = asyncio.run(aborting(stream, "training", accumulate(plan, stream)))
    busy = {name: report.busy for name, report in zip(run.learners, done.ranks, strict=True)}
    return replace(done, spans=run.spans("train", busy))


async def accumulate(plan: StepPlan, stream: SampleStream) -> GradientReport:
    """Accumulate the gradients of the stream's round on all learner ranks."""
    return await accumulate_round(
        learners_of(plan.run),
        stream.drain(GROUPED),
        store_of(plan),
        plan.run.learner,
        step=plan.step,
        versions=plan.versions,
        num_groups=plan.round.accept_prompts,
    )


@task(name="update-policy", task_run_name="update-{plan.step}", cache_policy=NO_CACHE)
async def update_policy(plan: StepPlan, gradients: GradientReport) -> PolicyReport:
    """Make the step's synchronous updates on all ranks. Idempotent: a learner answers a repeated
    call with the report of the updates that it has made."""
    made_by_rank = await update_all(learners_of(plan.run), plan.step)
    updates = dict(zip(plan.run.learners, made_by_rank, strict=True))
    passes = {rank: made.computed.busy for rank, made in updates.items()}
    busy = {rank: made.busy for rank, made in updates.items()}
    return PolicyReport(
        update=updates[plan.run.learners[0]],
        spans=(*plan.run.spans("train", passes), *plan.run.spans("update", busy)),
        ranks=tuple(made.computed for made in updates.values()),
    )


@task(name="publish-weights", task_run_name="publish-{plan.step}", cache_policy=NO_CACHE)
async def publish_weights(plan: StepPlan, policy: PolicyReport) -> PublishReport:
    """Export the new weight version, load it into every engine, and run the weight check. A round
    that overlaps this step's training is notified through the sample buffer."""
    published = await publish(plan.run, plan.round.at_update)
    if plan.overlaps:
        buffer, version = Remote.connect(plan.run.run_id, BUFFER), published.weights.version
        await buffer.call("announce", version, deadline_s=plan.run.deadlines.call_s)
    return published


async def publish(run: RunContext, running: Running = Running.DROP) -> PublishReport:
    """Load the learner's version into all engines. running: treatment of running responses."""
    started_s = time.time()
    published = await publish_version(
        learners_of(run),
        engines_of(run, run.engines),
        Path(run.weights_dir),
        check=run.gate,
        probes=run.probes,
        ranks_in_step=run.learner.ranks_in_step,
        running=running,
        plan=run.transfer,
    )
    busy = dict.fromkeys((run.learners[0], *run.engines), ((started_s, time.time()),))
    return replace(published, spans=run.spans("publish", busy))
