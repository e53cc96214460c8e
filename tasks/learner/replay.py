"""Brings the learner back to a committed step, from the last checkpoint and the recorded groups.

checkpoint of step 20 + groups of steps 21..27 -> the weights of step 27, bit by bit, without
generating a token
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from artifacts.checkpoint import Checkpoints, DamagedCheckpoint
from artifacts.journal import Journal
from artifacts.records import WeightsRef
from artifacts.store import Store
from tasks.learner.collective import replay_gradients, update_all
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.remote import RemoteLearner

logger = logging.getLogger(__name__)


class ReplayDiffers(RuntimeError):
    """Replayed training did not give the committed weights: the run must not go on with it."""


async def versions_of(learners: Sequence[RemoteLearner]) -> list[int]:
    """The last updated step of each rank, by rank."""
    return list(await asyncio.gather(*(learner.version() for learner in learners)))


async def replay_training(
    learners: Sequence[RemoteLearner],
    store: Store,
    checkpoints: Checkpoints,
    step: int,
    *,
    scratch: Path,
    config: LearnerConfig,
) -> None:
    """Restore the last intact checkpoint up to this step, and train the recorded steps after it.
    scratch: a directory for a copy of a remote store's checkpoint, which all ranks can read."""
    start = await _restored(learners, checkpoints, step, scratch)
    journal = Journal(store)
    for replayed in range(start + 1, step + 1):
        groups = journal.read_groups(replayed)
        await replay_gradients(learners, groups, store, replayed, config)
        await update_all(learners, replayed)


async def _restored(
    learners: Sequence[RemoteLearner], checkpoints: Checkpoints, step: int, scratch: Path
) -> int:
    """Load the last intact checkpoint up to this step and return its step; 0 where there is none
    and the learners have the model that they started from."""
    for start in reversed([saved for saved in checkpoints.steps() if saved <= step]):
        with ExitStack() as stack:
            fetched = checkpoints.fetched(start, scratch)
            try:
                path = await asyncio.to_thread(stack.enter_context, fetched)
            except DamagedCheckpoint as error:
                logger.warning("a checkpoint is passed over, more steps are replayed: %s", error)
                continue
            await asyncio.gather(*(learner.load_checkpoint(str(path)) for learner in learners))
            return start
    versions = await versions_of(learners)
    assert set(versions) == {0}, f"learners at {versions} cannot be replayed from the start"
    return 0


def check_digest(found: WeightsRef, committed: WeightsRef) -> None:
    """Raises ReplayDiffers unless `found` are the committed weights."""
    if found.digest != committed.digest:
        raise ReplayDiffers(
            f"replaying training up to step {found.version} must give the committed weights "
            f"({committed.digest[:12]}), got {found.digest[:12]}; was the run made with another "
            "number of learner ranks, torch version or machine, or by an older version of this "
            "code, which made an update where every gradient is zero? Resume it with what it "
            "was made with. Or is the checkpoint damaged, of a version that kept no digest of it? "
            "Delete its folder in checkpoints/: an earlier one is used, or none"
        )
