"""How far the round that runs has come: a progress bar in the Prefect UI, and metadata on the Dask
scheduler for the terminal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from distributed import get_client
from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact
from prefect.client.orchestration import get_client as prefect_client

from artifacts.records import Generated
from tasks.plan import StepPlan

PROGRESS_EVERY_S = 2.0


class RoundProgress:
    """Counts the responses of a round that have finished."""

    def __init__(self, plan: StepPlan) -> None:
        # an asynchronous round may begin with less than it will bring home
        num_prompts = max(len(plan.round.prompts), plan.round.accept_prompts)
        self.num_launched = num_prompts * plan.round.launch_per_prompt
        self.num_finished = 0

    def hear(self, finished: Sequence[Generated]) -> None:
        """These have finished."""
        self.num_finished += len(finished)


@asynccontextmanager
async def shown_progress(plan: StepPlan) -> AsyncIterator[RoundProgress]:
    """What is counted inside the block is shown until the block ends."""
    counted = RoundProgress(plan)
    showing = asyncio.create_task(_show(plan, counted))
    try:
        yield counted
    finally:
        showing.cancel()
        # a picture that failed is no reason to fail the round
        await asyncio.gather(showing, return_exceptions=True)


async def _show(plan: StepPlan, counted: RoundProgress) -> None:
    dask_client = get_client()
    launched = counted.num_launched
    # one client for all updates: making one takes an engine's core for 20 ms
    async with prefect_client() as api:
        artifact = await acreate_progress_artifact(
            progress=0.0,
            key=f"rollout-{artifact_key(plan.run.run_id)}",
            description=f"Step {plan.step}: responses of {launched} that have finished",
        )
        while True:
            finished = counted.num_finished
            await asyncio.to_thread(
                dask_client.set_metadata, progress_key(plan.run.run_id), (finished, launched)
            )
            await aupdate_progress_artifact(
                artifact_id=artifact,
                progress=min(100.0, 100.0 * finished / launched),
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
