"""The flow of one RL step.

       ┌───────────────────────── one Prefect flow run: rl-step ─────────────────────────┐
 plan ─▶ run_rollout ══ finished ═▶ score_responses                                       │
       │   engines   ◀══ scores ══     rewards                                            │
       │      ╚═══ accepted groups ═══▶ accumulate_gradients ─▶ update_policy ─▶ publish ─▶ engines
       └─────────────────────────────────────────────────────────────────────────────────┘

The first three tasks run at the same time on the cluster and meet in the sample buffer (═). The
last two follow (─) in this process: they only call actors, and a task run through Dask takes longer
until its first call. With the stream trainer (`tasks.scheduling.stream_training`) learners begin
on devices that the rollout frees; without it, they begin when all groups are accepted, beside the
writing of the round's tables, which are there before the update. The round's kind
and sizes are decided before the step begins (`tasks.scheduling.policies`). In the RollPacker
paper a step of the 14B model spends about 70 % in rollout, 5 to 10 % in reward and 20 to 25 % in
training (Table 1). `docs/architecture.md` follows one response from file to file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import dask
from prefect import flow

from flows.steps import StepOrdering
from flows.task_runner import result_of
from tasks.cluster.actors import ActorLost, Remote
from tasks.learner.reports import (
    GradientReport,
    PolicyReport,
    PublishReport,
    Skipped,
    UpdateReport,
)
from tasks.metrics.report import StepReport
from tasks.reward import score_responses
from tasks.rewards.scoring import RewardReport
from tasks.rollout import run_rollout
from tasks.rounds.report import RolloutReport
from tasks.run.run_context import StepPlan
from tasks.run.sample_buffer import RoundAborted
from tasks.run.sample_stream import ABORT_S, BUFFER
from tasks.train import accumulate_gradients, publish_weights, update_policy

SLOT = {"coordinator": 1}


@flow(
    name="rl-step",
    flow_run_name="step-{plan.step:05d}-{plan.round.kind}",
    validate_parameters=False,
)
async def rl_step(plan: StepPlan, ordering: StepOrdering | None = None) -> StepReport:
    """Roll out, score, train, update, publish. The caller commits the step. ordering: signals for a
    step that overlaps others; None for one that does not. Raises RoundAborted if another failed."""
    started_s, abort = time.time(), partial(abort_round, plan)
    with dask.annotate(resources=SLOT):
        rollout = run_rollout.submit(plan)  # prompts become responses, scored ones become groups
        reward = score_responses.submit(plan)  # a response that is finished gets its score
    if not plan.trains:
        rolled_out, scored = await all_results(abort, result_of(rollout), result_of(reward))
        return untrained(plan, rolled_out, scored, started_s)
    if ordering is not None and not await ordering.may_train(rollout):
        await all_results(abort, result_of(rollout), result_of(reward))
        raise RoundAborted("a step that overlaps this one failed")
    turn_s = time.time()
    with dask.annotate(resources=SLOT):
        gradients = accumulate_gradients.submit(plan)  # accepted groups become sums of gradients
    rolled_out, scored, (accumulated, policy, published) = await all_results(
        abort, result_of(rollout), result_of(reward), update_and_publish(plan, gradients, ordering)
    )
    return StepReport(
        plan=plan,
        rollout=rolled_out,
        reward=scored,
        gradients=accumulated,
        policy=policy,
        published=published,
        started_s=started_s,
        turn_s=turn_s,
        held_s=ordering.held_s if ordering is not None else 0.0,
        finished_s=time.time(),
    )


def untrained(
    plan: StepPlan, rollout: RolloutReport, reward: RewardReport, started_s: float
) -> StepReport:
    """The report of a step that only generates and scores: the weights stay what they are."""
    nothing = UpdateReport(
        step=plan.step,
        skipped=Skipped.EMPTY,
        normaliser=0.0,
        loss=0.0,
        grad_norm=0.0,
        learning_rate=0.0,
        busy=(),
    )
    return StepReport(
        plan=plan,
        rollout=rollout,
        reward=reward,
        gradients=GradientReport(ranks=()),
        policy=PolicyReport(update=nothing, spans=()),
        published=PublishReport(weights=plan.weights, probe_difference_nats=None, check_s=0.0),
        started_s=started_s,
        turn_s=started_s,
        finished_s=time.time(),
    )


async def update_and_publish(
    plan: StepPlan,
    gradients: Any,  # Any: a Prefect future
    ordering: StepOrdering | None = None,
) -> tuple[GradientReport, PolicyReport, PublishReport]:
    """Update once gradients are summed and old weights needed no more, then publish."""
    accumulated: GradientReport = await result_of(gradients)
    if ordering is not None:
        await ordering.may_update()
    policy = await update_policy(plan, accumulated)
    return accumulated, policy, await publish_weights(plan, policy)


async def abort_round(plan: StepPlan, reason: str) -> None:
    """Abort all open rounds of the run; no coordinator waits on a buffer that is lost."""
    with suppress(ActorLost, TimeoutError):
        buffer = await asyncio.to_thread(Remote.connect, plan.run.run_id, BUFFER)
        await buffer.call("abort", reason, deadline_s=ABORT_S)


async def all_results(
    abort: Callable[[str], Awaitable[None]],
    *work: Awaitable[Any],  # Any: of any result
) -> list[Any]:
    """Wait for all concurrent work; raises the failure that caused the others, if any. abort: ends
    the coordinators that wait for a failed one, which may have failed before its first line."""

    async def watched(each: Awaitable[Any]) -> Any:  # Any: as above
        try:
            return await each
        except RoundAborted:
            raise
        except Exception as error:
            await abort(f"{type(error).__name__}: {error}")
            raise

    results = await asyncio.gather(*map(watched, work), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    causes = [failure for failure in failures if not isinstance(failure, RoundAborted)]
    if failures:
        raise (causes or failures)[0]
    return list(results)
