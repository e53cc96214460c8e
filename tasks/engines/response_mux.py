"""A replica that a round and an evaluation beside it share: each of them collects what it asked
for.

    round ──────▶ submit ─▶ replica ─▶ one wait for both ─▶ the box of whoever asked ─▶ collect
    evaluation ─▶ submit ─▶

Of the rounds that train, one collects at a time; what it leaves running the next one goes on with.
Loading weights and stopping responses need no asker: their callers name what they mean.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum

from artifacts.new_tokens import News, split_news
from artifacts.records import Request, Running, WeightsRef
from tasks.engines.base import Attestation, Engine


class EngineClient(StrEnum):
    """Who asks an engine for responses."""

    ROUND = "round"  # the round that generates
    EVALUATION = "evaluation"


class ResponseMux:
    """Keeps apart who asked one replica for what. Belongs to one event loop."""

    def __init__(self, replica: Engine) -> None:
        self._replica = replica
        # who asked for what has not come, by response id and attempt
        self._asker_of: dict[tuple[str, int], EngineClient] = {}
        self._boxes: dict[EngineClient, list[News]] = defaultdict(list)  # what has come
        self._hearing: asyncio.Task[None] | None = None  # the one wait

    async def submit(self, asker: EngineClient, requests: Sequence[Request]) -> None:
        for request in requests:
            self._asker_of[request.response_id, request.attempt] = asker
        await self._replica.submit(requests)

    async def collect(self, asker: EngineClient, wait_s: float) -> list[News]:
        """What this asker asked for and is over, and what is told of the rest. May be empty before
        wait_s is, when something of the other's has come."""
        if not self._boxes[asker]:
            if self._hearing is None or self._hearing.done():
                self._hearing = asyncio.create_task(self._hear(wait_s))
            ended, _ = await asyncio.wait({self._hearing}, timeout=wait_s)
            for hearing in ended:
                hearing.result()
        return self._boxes.pop(asker, [])

    async def _hear(self, wait_s: float) -> None:
        over, told = split_news(await self._replica.collect(wait_s))
        for new in told:
            asker = self._asker_of.get((new.response_id, new.attempt), EngineClient.ROUND)
            self._boxes[asker].append(new)
        for response in over:
            asker = self._asker_of.pop((response.response_id, response.attempt), EngineClient.ROUND)
            self._boxes[asker].append(response)

    async def load_weights(
        self, weights: WeightsRef, probes: Sequence[tuple[int, ...]], running: Running
    ) -> Attestation:
        attestation = await self._replica.load_weights(weights, probes, running)
        if running is Running.DROP:
            self._asker_of.clear()
            self._boxes.clear()
        return attestation
