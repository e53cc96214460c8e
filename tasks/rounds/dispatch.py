"""The engines of a round behind one router: requests out in batches, one call per engine, and who
was lost on the way.

Leaves out what to generate (the driver) and what to do about a loss (`generation`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence

from artifacts.records import Generated, Request
from tasks.engines.base import Engine, EngineLost, EngineStats
from tasks.rounds.records import InFlight
from tasks.rounds.router import Router
from tasks.scheduling.stream_training import RunningRequest


class Dispatch:
    """Which engine runs which request."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = {engine.name: engine for engine in engines}
        self._router = Router([engine.name for engine in engines])
        # sampled tokens that what was sent had already, by engine, response id and attempt
        self._sent: dict[tuple[str, str, int], int] = {}
        self._left: dict[str, tuple[str, Request]] = {}  # what runs on, with its engine

    @property
    def alive(self) -> tuple[str, ...]:
        """Engines that have not been lost."""
        return self._router.alive

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of all responses that some engine has not answered."""
        return self._router.running()

    async def read(
        self,
    ) -> tuple[dict[str, int], tuple[RunningRequest, ...], dict[str, EngineLost]]:
        """KV capacity in tokens of every engine in service, what runs on them, and the engines that
        were found lost."""
        names = self._router.in_service
        readings = (self.reading(name) for name in names)
        answers = await asyncio.gather(*readings, return_exceptions=True)
        lost = _losses(names, answers)
        stats = [answer for answer in answers if isinstance(answer, EngineStats)]
        running = tuple(request_id for reading in stats for request_id in self._running_on(reading))
        return {reading.engine: reading.kv_tokens for reading in stats}, running, lost

    async def reading(self, name: str) -> EngineStats:
        """How this engine stands. Raises EngineLost."""
        return await self._engines[name].stats()

    def _running_on(self, reading: EngineStats) -> Iterator[RunningRequest]:
        """What the engine has not finished; what it has finished and not handed back yet is on its
        way."""
        for request in self._router.requests(reading.engine):
            if request.response_id in reading.progress:
                yield RunningRequest(
                    engine=reading.engine,
                    prompt_tokens=len(request.prompt_tokens),
                    num_tokens=reading.progress[request.response_id],
                    max_new_tokens=request.max_new_tokens,
                )

    def retire(self, names: Sequence[str]) -> tuple[str, ...]:
        """Give these engines no more requests; the ids of what runs on them."""
        for name in names:
            self._router.retire(name)
        return tuple(
            request.response_id for name in names for request in self._router.requests(name)
        )

    def num_running(self, name: str) -> int:
        """Requests that this engine has not answered."""
        return self._router.num_running(name)

    async def collect(self, name: str, wait_s: float) -> list[Generated]:
        """What this engine has ready; waits up to wait_s for the first. Raises EngineLost."""
        return await self._engines[name].collect(wait_s)

    async def submit(self, requests: Sequence[Request]) -> dict[str, EngineLost]:
        """Spread these over the engines, one submission each; returns the engines that were found
        lost. They still hold theirs."""
        batches: dict[str, list[Request]] = {}
        for request in requests:
            name = self._router.assign(request)
            self._sent[name, request.response_id, request.attempt] = request.num_kept
            batches.setdefault(name, []).append(request)
        return await _lost(
            {name: self._engines[name].submit(batch) for name, batch in batches.items()}
        )

    async def abort(self, response_ids: Sequence[str]) -> dict[str, EngineLost]:
        """Stop those of these that run; returns the engines that were found lost."""
        batches: dict[str, list[str]] = {}
        for name in response_ids:
            where = self._router.where(name)
            if where is not None:
                batches.setdefault(where, []).append(name)
        return await _lost(
            {name: self._engines[name].abort(batch) for name, batch in batches.items()}
        )

    def adopt(self, name: str, request: Request, num_kept: int) -> bool:
        """Whether this engine is there; it runs the request, which a round before sent it."""
        if name not in self._router.alive:
            return False
        self._router.adopt(name, request)
        self._sent[name, request.response_id, request.attempt] = num_kept
        return True

    async def leave(self, response_ids: Sequence[str]) -> dict[str, EngineLost]:
        """Wait for these no more and let them run on; an engine that is being waited for answers
        with what it has. Returns the engines that were found lost."""
        for response_id in response_ids:
            name = self._router.where(response_id)
            request = self._router.asked(name, response_id) if name is not None else None
            if name is not None and request is not None:
                self._left[response_id] = (name, request)
                self._router.finish(response_id)
        return await _lost({name: self._engines[name].abort(()) for name in self.left_on})

    def come_back(self) -> None:
        """Wait for everything again that was left."""
        for name, request in self._left.values():
            self._router.adopt(name, request)
        self._left.clear()

    @property
    def left_on(self) -> tuple[str, ...]:
        """The engines on which something runs on."""
        return tuple(dict.fromkeys(name for name, _ in self._left.values()))

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        """What runs on."""
        return tuple(
            InFlight(
                engine=name,
                prompt_id=request.prompt_id,
                index=request.index,
                attempt=request.attempt,
                num_kept=self._sent[name, request.response_id, request.attempt],
            )
            for name, request in self._left.values()
        )

    def is_expected(self, name: str, generated: Generated) -> bool:
        """Whether this engine was asked for this, by this round or by the one that left it, and has
        not answered yet."""
        left_on, left = self._left.get(generated.response_id, ("", None))
        request = left if left_on == name else self._router.asked(name, generated.response_id)
        return request is not None and request.attempt == generated.attempt

    def num_new(self, name: str, generated: Generated) -> int:
        """Tokens of a response that this engine sampled: all but the kept ones that were sent."""
        sent = self._sent.get((name, generated.response_id, generated.attempt), 0)
        return generated.num_sampled + generated.num_forgotten - sent

    def finish(self, response_id: str) -> None:
        """The response is over, however it ended."""
        self._router.finish(response_id)
        self._left.pop(response_id, None)

    def remove(self, name: str) -> tuple[Request, ...]:
        """Take a lost engine out; what it had not answered."""
        self._left = {left: where for left, where in self._left.items() if where[0] != name}
        return self._router.remove(name)


async def _lost(calls: Mapping[str, Awaitable[None]]) -> dict[str, EngineLost]:
    """Await one call per engine; any other error than a loss is raised."""
    return _losses(tuple(calls), await asyncio.gather(*calls.values(), return_exceptions=True))


def _losses(names: Sequence[str], results: Sequence[object]) -> dict[str, EngineLost]:
    lost: dict[str, EngineLost] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, EngineLost):
            lost[name] = result
        elif isinstance(result, BaseException):
            raise result
    return lost
