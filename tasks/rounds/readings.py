"""How the engines of the run itself stand at one moment, for the stream trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tasks.engines.base import EngineLost, EngineStats
from tasks.rounds.engine_pool import EnginePool, losses
from tasks.scheduling.stream_training import RunningRequest


async def read_engines(
    dispatch: EnginePool,
) -> tuple[dict[str, int], tuple[RunningRequest, ...], dict[str, EngineLost]]:
    """KV capacity in tokens of every engine in service, what runs on them, and the engines that
    were found lost; without elastic workers, whose room may be gone at any moment."""
    names = dispatch.own
    answers = await asyncio.gather(*map(dispatch.reading, names), return_exceptions=True)
    lost = losses(names, answers)
    stats = [answer for answer in answers if isinstance(answer, EngineStats)]
    running = tuple(request for reading in stats for request in _running_on(dispatch, reading))
    return {reading.engine: reading.kv_tokens for reading in stats}, running, lost


def _running_on(dispatch: EnginePool, reading: EngineStats) -> Iterator[RunningRequest]:
    """What the engine has not finished; what it has finished and not handed back yet is on its
    way."""
    for request in dispatch.router.requests(reading.engine):
        if request.response_id in reading.progress:
            yield RunningRequest(
                engine=reading.engine,
                prompt_tokens=len(request.prompt_tokens),
                num_tokens=reading.progress[request.response_id],
                max_new_tokens=request.max_new_tokens,
            )
