"""Handles for a run's tasks on its engines and learner ranks. Each call connects by name, so that
it finds an actor that was replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost
from tasks.engines.remote import EngineClient, RemoteEngine
from tasks.learner.remote import RemoteLearner
from tasks.run.run_context import RunContext

logger = logging.getLogger(__name__)


def learners_of(run: RunContext) -> list[RemoteLearner]:
    """The learner's ranks, in order. Raises ActorLost if one is gone."""
    deadline_s = run.deadlines.learner_call_s
    return [RemoteLearner.connect(run.run_id, name, deadline_s) for name in run.learners]


def engines_of(
    run: RunContext, names: Sequence[str], client: EngineClient = EngineClient.ROUND
) -> list[RemoteEngine]:
    """Handles on these engines for this client. Raises ActorLost if one is gone."""
    deadline_s = run.deadlines.call_s
    return [RemoteEngine.connect(run.run_id, name, deadline_s, client) for name in names]


async def sleep_engines(run: RunContext, names: Sequence[str]) -> None:
    """Have these engines leave their GPUs to the learners until the next load of weights, where
    `engine.sleeps`. Raises EngineLost for a living engine that fails to sleep."""

    async def sleep(name: str) -> None:
        try:
            (engine,) = engines_of(run, (name,))
            await engine.sleep()
        except (ActorLost, EngineLost) as error:
            if not isinstance(error, ActorLost) and not isinstance(error.__cause__, ActorLost):
                raise
            # without its worker it holds no GPU, and the next load fails for it
            logger.warning("engine=%s has nothing to give back: %s", name, error)

    if run.engine.sleeps:
        await asyncio.gather(*map(sleep, names))
