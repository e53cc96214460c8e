"""What makes a run survive: the learner restored from the last checkpoint, and training replayed
from recorded groups.

checkpoint of step 20 + groups of steps 21..27 -> the weights of step 27, bit by bit, without
generating a token
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts import layout
from artifacts.checkpoint import Checkpoints
from artifacts.journal import Journal
from artifacts.records import WeightsRef
from artifacts.store import Store
from tasks.plan import RunContext
from tasks.train import (
    PublishReport,
    learner_ranks,
    publish,
    replay_gradients,
    rest_engines,
    update_on_ranks,
)


class ReplayDiffers(RuntimeError):
    """Replayed training did not reproduce the committed weights; the run must not go on from
    them."""


@task(
    name="restore-policy",
    task_run_name="restore-to-step-{step}",
    cache_policy=NO_CACHE,
    tags=["train"],
)
async def restore_policy(
    run: RunContext, step: int, keep_checkpoints: int, committed: WeightsRef | None
) -> PublishReport:
    """Bring the learners to this step, unless they have come so far, and the engines to what the
    learners hold; checks the digest of the step's weights against the commit's."""
    versions = await versions_of(run)
    if min(versions) < step:
        store = Store.open(run.artifact_root).child(run.run_id)
        await rest_engines(run, run.engines)
        await _replay(run, store, Checkpoints(store, keep_checkpoints), step, versions)
    report = await publish(run)
    if report.weights.version == step and committed is not None:
        _check_digest(report.weights, committed)
    return report


def _check_digest(found: WeightsRef, committed: WeightsRef) -> None:
    if found.digest != committed.digest:
        raise ReplayDiffers(
            f"replaying training up to step {found.version} must give the committed weights "
            f"({committed.digest[:12]}), got {found.digest[:12]}; was the run made with another "
            "number of learner ranks, torch version or machine, or by an older version of this "
            "code, which made an update where every gradient is zero? Resume it with what it "
            "was made with"
        )


async def versions_of(run: RunContext) -> list[int]:
    """The last step whose update each learner rank has made."""
    deadline_s = run.deadlines.learner_call_s
    calls = (rank.call("version", deadline_s=deadline_s) for rank in learner_ranks(run))
    return list(await asyncio.gather(*calls))


async def _replay(
    run: RunContext,
    store: Store,
    checkpoints: Checkpoints,
    step: int,
    versions: Sequence[int],
) -> None:
    ranks = learner_ranks(run)
    deadline_s = run.deadlines.learner_call_s
    start = checkpoints.latest(at_most=step)
    if start is None:
        assert set(versions) == {0}, f"learners at {versions} cannot be replayed from the start"
    else:
        with ExitStack() as stack:
            path = await asyncio.to_thread(
                stack.enter_context, checkpoints.fetched(start, Path(run.weights_dir))
            )
            await asyncio.gather(
                *(rank.call("load_checkpoint", str(path), deadline_s=deadline_s) for rank in ranks)
            )
    journal = Journal(store)
    for replayed in range((start or 0) + 1, step + 1):
        await replay_gradients(run, store, replayed, journal.read_groups(replayed))
        await update_on_ranks(run, replayed)


async def save_checkpoint(run: RunContext, step: int, keep: int) -> str:
    """Every rank's shard, complete or absent; the store path."""
    checkpoints = Checkpoints(Store.open(run.artifact_root).child(run.run_id), keep)
    with checkpoints.aside(Path(run.weights_dir)) as aside:
        calls = (
            rank.call("save_checkpoint", str(aside), deadline_s=run.deadlines.learner_call_s)
            for rank in learner_ranks(run)
        )
        await asyncio.gather(*calls)
        return await asyncio.to_thread(checkpoints.commit, step, aside)


def export_model(run: RunContext, weights: WeightsRef) -> str:
    """The trained model as a Hugging Face directory in the run's folder: the weights, and all but
    the weights of the first model."""
    store = Store.open(run.artifact_root).child(run.run_id)
    with tempfile.TemporaryDirectory(prefix="rollflow-model-") as aside:
        for path in Path(run.model_path).iterdir():
            if (
                path.is_file()
                and path.suffix not in (".safetensors", ".bin")
                and not path.name.endswith(".index.json")
            ):
                shutil.copy2(path, aside)
        shutil.copy2(weights.path, Path(aside) / "model.safetensors")
        store.upload(Path(aside), layout.MODEL)
    return f"{store.url}/{layout.MODEL}"
