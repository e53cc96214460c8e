"""Recovery of a run: after workers die, and after the whole run was killed within a round.

    work ── a worker dies ──▶ replace lost actors ──▶ restore ──▶ work, the next attempt
    plan_round ──▶ plans/00007.json ──▶ half played, killed ──▶ resumed ──▶ the same round

If one learner is lost, all ranks are restored from the last checkpoint and replay the committed
steps. Recorded responses are not generated again, and a begun round is played by its stored plan,
even if a resume changes settings. Evaluations are planned again."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from distributed import KilledWorker
from distributed.client import FutureCancelledError
from pydantic import TypeAdapter

from artifacts import layout
from artifacts.commit import read_commits
from artifacts.records import WeightsRef
from artifacts.store import RESTORE, Store
from flows.run import OpenRun
from tasks.checkpointing import restore_policy
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost
from tasks.learner.ranks import PeerLost
from tasks.run.fleet import Fleet
from tasks.run.run_context import RunContext
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.queue_state import QueueState

logger = logging.getLogger(__name__)

T = TypeVar("T")
RECOVERABLE = (ActorLost, EngineLost, PeerLost, KilledWorker, FutureCancelledError)
PLAN_SCHEMA_VERSION = 1
PLAN_AGAIN = f"{RESTORE}, or delete it if its round is not in rounds/: the round is planned again"


async def retry(work: Callable[[int], Awaitable[T]], max_recoveries: int, what: str) -> T:
    """Await `work(attempt)`, from 1 on, again if workers die. `what` names it in log lines."""
    for attempt in range(1, max_recoveries + 2):
        try:
            return await work(attempt)
        except RECOVERABLE as error:
            logger.warning("%s attempt=%d reason=%s", what, attempt, error)
            if attempt > max_recoveries:
                raise
    raise AssertionError("the last attempt either returns or raises")


async def start_at(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """Start the actors, and load the weights after this step into every engine; returns these."""

    async def start(attempt: int) -> WeightsRef:
        await (fleet.start() if attempt == 1 else fleet.replace_lost())
        return await restore(run, fleet, step)

    return await retry(start, run.config.max_recoveries, f"weights of step={step}")


async def recover(run: OpenRun, fleet: Fleet, committed: int) -> WeightsRef:
    """Replace lost actors and restore the weights after the step `committed`; returns those that
    all engines then hold (see `restore`). It restores even if no learner was lost: an earlier
    attempt may have started new learners and died before their replay."""
    await fleet.replace_lost()
    return await restore(run, fleet, committed)


async def restore(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """Bring learners and engines to the state after this step; returns the weights that they hold:
    those of the next step, if its update was made before the loss."""
    if not run.context.learners:
        return first_weights(run.context)
    kept, committed = run.config.keep.checkpoints, run.weights_of(step)
    report = await restore_policy(fleet.run, step, kept, committed)
    await fleet.elastic.publish(report)
    return report.weights


def first_weights(context: RunContext) -> WeightsRef:
    """The weights of the first model, which engines hold from their start: of version 0."""
    return WeightsRef(version=0, path=context.model_path, digest="")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRound:
    """The stored plan of a step's round, which the first attempt at the step made."""

    before: QueueState  # state of the prompt queue when the round was planned
    plan: RoundPlan  # prompts and sizes of the round
    schema_version: int = PLAN_SCHEMA_VERSION  # of this record


_JSON = TypeAdapter(PartialRound)


def keep_round(store: Store, begun: PartialRound) -> PartialRound:
    """Store a round as the plan of its step, and return it."""
    store.keep(layout.step_file(layout.PLANS, begun.plan.step), _JSON.dump_json(begun, indent=1))
    return begun


def copy_plans(run: OpenRun) -> None:
    """Store the plans of the committed rounds of the run that this one replays, if it replays one;
    those that are there stay. A step whose plan is stored plays its round as planned. Raises
    ValueError for a run whose rounds carry responses into the next."""
    if not run.config.replays:
        return
    source = Store.open(run.config.replays)
    for commit in read_commits(source):
        begun = partial_round(source, commit.step, commit.step, ())
        if begun is None or begun.plan.admission is not None:
            raise ValueError(
                f"replays must name a run of synchronous rounds whose plans are there,"
                f" {source.url} has none for step {commit.step}; name another, or play its task"
                " anew: rollflow rollout without --from"
            )
        if not run.store.exists(layout.step_file(layout.PLANS, commit.step)):
            keep_round(run.store, begun)


def partial_round(
    store: Store,
    step: int,
    num_steps: int,
    unfit: Collection[int],
) -> PartialRound | None:
    """Read the stored plan of a step's round; None if there is none that can be followed: one that
    is not closed and asks unfit rows, or new prompts after the last step. Raises ValueError for
    another schema version."""
    name = layout.step_file(layout.PLANS, step)
    if not store.exists(name):
        return None
    begun = store.parsed(name, _parsed, PLAN_AGAIN)
    if not isinstance(begun, PartialRound):
        raise ValueError(
            f"{store.url}/{name} must have schema version {PLAN_SCHEMA_VERSION}, got {begun};"
            " resume it with the code that wrote it"
        )
    asks_unfit = any(ref.row in unfit for ref in begun.plan.candidates)
    is_over = step > num_steps and not begun.plan.is_drain
    is_closed = store.exists(layout.step_file(layout.ROUNDS, step))
    return begun if is_closed or not (asks_unfit or is_over) else None


def _parsed(data: bytes) -> object:
    """Parse a stored round; returns its schema version instead if that differs from this code's."""
    version = dict(json.loads(data)).get("schema_version")
    return _JSON.validate_json(data) if version == PLAN_SCHEMA_VERSION else version
