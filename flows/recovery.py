"""Going on when workers die: what was lost is made anew, learners and engines are brought back to
the last commit, and the work begins again.

    work ── a worker dies ──▶ replace what was lost ──▶ restore ──▶ work, the next attempt

A lost learner takes all ranks with it: they are restored from the last checkpoint and replay the
committed steps. What an attempt recorded is not generated again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from distributed import KilledWorker
from distributed.client import FutureCancelledError

from artifacts.records import WeightsRef
from flows.run import OpenRun
from tasks.checkpointing import restore_policy
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost
from tasks.learner.ranks import PeerLost
from tasks.run.fleet import Fleet

logger = logging.getLogger(__name__)

T = TypeVar("T")
RECOVERABLE = (ActorLost, EngineLost, PeerLost, KilledWorker, FutureCancelledError)


async def retry(work: Callable[[int], Awaitable[T]], max_recoveries: int, what: str) -> T:
    """Do it again, attempt after attempt from 1, as long as workers die under it."""
    for attempt in range(1, max_recoveries + 2):
        try:
            return await work(attempt)
        except RECOVERABLE as error:
            logger.warning("%s attempt=%d reason=%s", what, attempt, error)
            if attempt > max_recoveries:
                raise
    raise AssertionError("the last attempt either returns or raises")


async def start_at(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """The actors, and in every engine the weights after this step: what a run begins with."""

    async def start(attempt: int) -> WeightsRef:
        await (fleet.start() if attempt == 1 else fleet.replace_lost())
        return await restore(run, fleet, step)

    return await retry(start, run.config.max_recoveries, f"weights of step={step}")


async def recover(run: OpenRun, fleet: Fleet, committed: int) -> WeightsRef:
    """New actors for the lost ones, and the weights back to where they were, in engines that drop
    what a lost coordinator asked of them.

    What is restored depends on where the learners are: an attempt before may have made new ones and
    died before their replay.
    """
    await fleet.replace_lost()
    return await restore(run, fleet, committed)


async def restore(run: OpenRun, fleet: Fleet, step: int) -> WeightsRef:
    """Bring learners and engines to this step; the weights they hold then, which are a later step's
    if that was updated."""
    kept, committed = run.config.keep.checkpoints, run.weights_of(step)
    report = await restore_policy(fleet.run, step, kept, committed)
    await fleet.published(report)
    return report.weights
