"""Shows the progress of the running round: as a progress bar in the Prefect UI, and as metadata on
the Dask scheduler, which the terminal reads.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial

from distributed import Client, get_client
from prefect.artifacts import ProgressArtifact, aupdate_progress_artifact
from prefect.client.orchestration import get_client as prefect_client

from artifacts.records import Generated, Group
from tasks.rounds.round_progress import ObservedScheduler, RoundProgress
from tasks.run.run_context import StepPlan
from tasks.scheduling.staleness import lag_of

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 2.0
FIRST_AFTER_S = 0.5  # by then the engines, which come first, have got their first requests
ENDS_WITHIN_S = 10.0  # after its round
ANSWER_S = 5.0  # the scheduler's, for the counts


class ProgressReporter:
    """Counts the responses that a round has launched, finished and accepted."""

    def __init__(self, plan: StepPlan) -> None:
        self.scheduler = ObservedScheduler(plan.scheduler(), plan.round)  # decides the round
        self._step = plan.step
        self._lags: list[int] = []
        # an asynchronous round may begin with fewer prompts than it accepts
        num_prompts = max(len(plan.round.prompts), plan.round.accept_prompts)
        self.num_launched = num_prompts * plan.round.launch_per_prompt
        self.num_finished = 0

    def finish(self, responses: Sequence[Generated]) -> None:
        """Count finished responses."""
        self.num_finished += len(responses)

    @property
    def percentage(self) -> float:
        """Percent of the planned responses that have finished, 100 if more were launched."""
        return min(100.0, 100.0 * self.num_finished / self.num_launched)

    def accept(self, group: Group) -> None:
        """Count an accepted group."""
        lags = (lag_of(response.generated, self._step) for response in group.responses)
        self._lags += [lag for lag in lags if lag is not None]

    @property
    def progress(self) -> RoundProgress:
        """The progress of the round, with the mean lag of its accepted responses."""
        lag = sum(self._lags) / len(self._lags) if self._lags else None
        return replace(self.scheduler.progress, lag=lag)


@asynccontextmanager
async def shown_progress(plan: StepPlan) -> AsyncIterator[ProgressReporter]:
    """Show a round's progress while the block runs. At its end the last counts of a training round
    stay in the metadata; those of an evaluation are removed."""
    reporter = ProgressReporter(plan)
    showing = asyncio.create_task(_show(plan, reporter))
    try:
        yield reporter
    finally:
        showing.cancel()
        # a picture that failed is no reason to fail the round, nor is one that does not end to wait
        await asyncio.wait((showing,), timeout=ENDS_WITHIN_S)
        if showing.done() and not showing.cancelled() and (error := showing.exception()):
            logger.info("step=%d progress is not shown: %s", plan.step, error)


async def _show(plan: StepPlan, reporter: ProgressReporter) -> None:
    dask_client = get_client()
    try:
        await _keep(dask_client, plan, reporter.progress)
        await asyncio.sleep(FIRST_AFTER_S)
        # one client for all: making one takes time of a core that an engine may be on
        async with prefect_client() as api:
            artifact = await ProgressArtifact(
                progress=reporter.percentage,
                key=f"{_name(plan.is_evaluation)}-{artifact_key(plan.run.run_id)}",
                description=f"Step {plan.step}: responses of {reporter.num_launched} that have"
                " finished",
            ).acreate(client=api)
            while True:
                await _keep(dask_client, plan, reporter.progress)
                await asyncio.sleep(PROGRESS_EVERY_S)
                await aupdate_progress_artifact(
                    artifact_id=artifact.id, progress=reporter.percentage, client=api
                )
    finally:
        await _keep(dask_client, plan, None if plan.is_evaluation else reporter.progress)


async def _keep(client: Client, plan: StepPlan, progress: RoundProgress | None) -> None:
    """Keep a round's progress on the scheduler, where the terminal reads; None clears the entry."""
    key = progress_key(plan.run.run_id, is_evaluation=plan.is_evaluation)
    kept = None if progress is None else asdict(progress)
    tell = partial(client.sync, client.scheduler.set_metadata, callback_timeout=ANSWER_S)
    await asyncio.to_thread(tell, keys=key, value=kept)


def artifact_key(run_id: str) -> str:
    """The run's name as an artifact's key of Prefect: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", run_id.lower())


def progress_key(run_id: str, *, is_evaluation: bool = False) -> list[str]:
    """Dask's metadata key of the `RoundProgress` of the running round or evaluation."""
    return ["rollflow", run_id, "progress", _name(is_evaluation)]


def _name(is_evaluation: bool) -> str:
    return "evaluation" if is_evaluation else "rollout"
