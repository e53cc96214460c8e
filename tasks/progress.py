"""How far the round that runs has come: a progress bar in the Prefect UI, and metadata on the Dask
scheduler for the terminal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from distributed import get_client
from prefect.artifacts import ProgressArtifact, aupdate_progress_artifact
from prefect.client.orchestration import get_client as prefect_client

from artifacts.records import Generated
from tasks.plan import StepPlan

PROGRESS_EVERY_S = 2.0
FIRST_AFTER_S = 0.5  # the engines have got their first requests by then, and come first


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

    @property
    def percentage(self) -> float:
        """How much of what was planned has finished; a round may launch more than that."""
        return min(100.0, 100.0 * self.num_finished / self.num_launched)


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
    tell = partial(get_client().set_metadata, progress_key(plan.run.run_id))
    await asyncio.to_thread(tell, (counted.num_finished, counted.num_launched))
    await asyncio.sleep(FIRST_AFTER_S)
    # one client for all: making one takes time of a core that an engine may be on
    async with prefect_client() as api:
        artifact = await ProgressArtifact(
            progress=counted.percentage,
            key=f"rollout-{artifact_key(plan.run.run_id)}",
            description=f"Step {plan.step}: responses of {counted.num_launched} that have finished",
        ).acreate(client=api)
        while True:
            await asyncio.to_thread(tell, (counted.num_finished, counted.num_launched))
            await asyncio.sleep(PROGRESS_EVERY_S)
            await aupdate_progress_artifact(
                artifact_id=artifact.id, progress=counted.percentage, client=api
            )


def artifact_key(run_id: str) -> str:
    """The run's name as Prefect accepts it in an artifact's key: lowercase letters, digits and
    dashes."""
    return re.sub(r"[^a-z0-9]+", "-", run_id.lower())


def progress_key(run_id: str) -> list[str]:
    """Where the scheduler's metadata has (finished, launched) of the round that runs."""
    return ["rollflow", run_id, "progress"]
