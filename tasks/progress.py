"""How far the round that runs has come: a progress bar in the Prefect UI, and metadata on the Dask
scheduler for the terminal.

    scheduler, finished responses, accepted groups ─▶ ProgressReporter ─▶ metadata ─▶ view
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

from distributed import Client, get_client
from prefect.artifacts import ProgressArtifact, aupdate_progress_artifact
from prefect.client.orchestration import get_client as prefect_client

from artifacts.records import Generated, Group
from tasks.rounds.round_progress import ObservedScheduler, RoundProgress
from tasks.run.plan import StepPlan
from tasks.scheduling.staleness import lag_of

PROGRESS_EVERY_S = 2.0
FIRST_AFTER_S = 0.5  # the engines have got their first requests by then, and come first


class ProgressReporter:
    """Hears of what a round does."""

    def __init__(self, plan: StepPlan) -> None:
        self.scheduler = ObservedScheduler(plan.scheduler(), plan.round)  # the round's
        self._step = plan.step
        self._lags: list[int] = []
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

    def accept(self, group: Group) -> None:
        """This group is accepted."""
        lags = (lag_of(response.generated, self._step) for response in group.responses)
        self._lags += [lag for lag in lags if lag is not None]

    @property
    def filling(self) -> RoundProgress:
        """Where the round stands."""
        lag = sum(self._lags) / len(self._lags) if self._lags else None
        return replace(self.scheduler.filling, lag=lag)


@asynccontextmanager
async def shown_progress(plan: StepPlan) -> AsyncIterator[ProgressReporter]:
    """What is counted inside the block is shown until the block ends, and after it as it ended."""
    counted = ProgressReporter(plan)
    showing = asyncio.create_task(_show(plan, counted))
    try:
        yield counted
    finally:
        showing.cancel()
        # a picture that failed is no reason to fail the round
        await asyncio.gather(showing, return_exceptions=True)


async def _show(plan: StepPlan, counted: ProgressReporter) -> None:
    dask_client = get_client()
    try:
        await _tell(dask_client, plan, counted.filling)
        await asyncio.sleep(FIRST_AFTER_S)
        # one client for all: making one takes time of a core that an engine may be on
        async with prefect_client() as api:
            artifact = await ProgressArtifact(
                progress=counted.percentage,
                key=f"{_name(plan.is_evaluation)}-{artifact_key(plan.run.run_id)}",
                description=f"Step {plan.step}: responses of {counted.num_launched} that have"
                " finished",
            ).acreate(client=api)
            while True:
                await _tell(dask_client, plan, counted.filling)
                await asyncio.sleep(PROGRESS_EVERY_S)
                await aupdate_progress_artifact(
                    artifact_id=artifact.id, progress=counted.percentage, client=api
                )
    finally:
        await _tell(dask_client, plan, None if plan.is_evaluation else counted.filling)


async def _tell(client: Client, plan: StepPlan, filling: RoundProgress | None) -> None:
    """Keep how full the round is where the terminal looks; None clears it."""
    key = progress_key(plan.run.run_id, is_evaluation=plan.is_evaluation)
    told = None if filling is None else asdict(filling)
    await asyncio.to_thread(client.set_metadata, key, told)


def artifact_key(run_id: str) -> str:
    """The run's name as Prefect accepts it in an artifact's key: lowercase letters, digits and
    dashes."""
    return re.sub(r"[^a-z0-9]+", "-", run_id.lower())


def progress_key(run_id: str, *, is_evaluation: bool = False) -> list[str]:
    """Where the scheduler's metadata has the filling of the round that runs, or of the evaluation
    beside it, field by field."""
    return ["rollflow", run_id, "progress", _name(is_evaluation)]


def _name(is_evaluation: bool) -> str:
    return "evaluation" if is_evaluation else "rollout"
