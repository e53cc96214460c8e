"""Recovery of a run: after workers die, and after the whole run was killed within a round.

    work ── a worker dies ──▶ replace what was lost ──▶ restore ──▶ work, the next attempt
    plan_round ──▶ plans/00007.json ──▶ half played, killed ──▶ resumed ──▶ the same round

A lost learner takes all ranks with it: they are restored from the last checkpoint and replay the
committed steps. What an attempt recorded is not generated again. A resumed run plays the round that
was begun, whatever the resume changes in the plan of later ones. Evaluations keep no plan: one with
other held-out prompts is made anew."""

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
from artifacts.records import WeightsRef
from artifacts.store import RESTORE, Store
from flows.run import OpenRun
from tasks.checkpointing import restore_policy
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost
from tasks.learner.ranks import PeerLost
from tasks.run.fleet import Fleet
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.queue_state import QueueState

logger = logging.getLogger(__name__)

T = TypeVar("T")
RECOVERABLE = (ActorLost, EngineLost, PeerLost, KilledWorker, FutureCancelledError)
PLAN_SCHEMA_VERSION = 1
PLAN_AGAIN = f"{RESTORE}, or delete it if its round is not in rounds/: the round is planned again"


async def retry(work: Callable[[int], Awaitable[T]], max_recoveries: int, what: str) -> T:
    """Do the work, and again up to max_recoveries times if workers die; attempts count from 1."""
    for attempt in range(1, max_recoveries + 2):
        try:
            return await work(attempt)
        except RECOVERABLE as error:
            logger.warning("%s attempt=%d reason=%s", what, attempt, error)
            if attempt > max_recoveries:
                raise
    raise AssertionError("the last attempt either returns or raises")


async def start_at(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """Start the actors, and load the weights after this step into every engine."""

    async def start(attempt: int) -> WeightsRef:
        await (fleet.start() if attempt == 1 else fleet.replace_lost())
        return await restore(run, fleet, step)

    return await retry(start, run.config.max_recoveries, f"weights of step={step}")


async def recover(run: OpenRun, fleet: Fleet, committed: int) -> WeightsRef:
    """Replace lost actors and restore the weights; engines drop the requests of a lost coordinator.

    The weights to restore depend on where the learners are: an earlier attempt may have started new
    learners and died before their replay.
    """
    await fleet.replace_lost()
    return await restore(run, fleet, committed)


async def restore(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """Bring learners and engines to this step; returns the weights that they hold then.

    Those are the next step's weights if that step was updated before the loss.
    """
    kept, committed = run.config.keep.checkpoints, run.weights_of(step)
    report = await restore_policy(fleet.run, step, kept, committed)
    await fleet.published(report)
    return report.weights


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRound:
    """The round of a step, as the first attempt at the step planned it."""

    before: QueueState  # where the prompts stood when it was planned
    plan: RoundPlan  # prompts and sizes of the round
    schema_version: int = PLAN_SCHEMA_VERSION  # of this record


_JSON = TypeAdapter(PartialRound)


def keep_round(store: Store, begun: PartialRound) -> PartialRound:
    """Write the round as the plan of its step."""
    store.keep(layout.plan_file(begun.plan.step), _JSON.dump_json(begun, indent=1))
    return begun


def partial_round(
    store: Store,
    step: int,
    num_steps: int,
    unfit: Collection[int],
) -> PartialRound | None:
    """Read the round that was begun for a step; None if there is none to go on with.

    A round that was not closed is planned again if its plan cannot be followed: because it asks
    unfit rows, or new prompts after the last step. Raises ValueError for another schema version.
    """
    name = layout.plan_file(step)
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
    is_closed = store.exists(layout.round_file(step))
    return begun if is_closed or not (asks_unfit or is_over) else None


def _parsed(data: bytes) -> object:
    """Parse a round; returns the schema version instead if other code wrote the round."""
    version = dict(json.loads(data)).get("schema_version")
    return _JSON.validate_json(data) if version == PLAN_SCHEMA_VERSION else version
