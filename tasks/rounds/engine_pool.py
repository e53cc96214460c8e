"""The engines of a round behind one router: requests out in batches, one call per engine, and who
was lost on the way.

    submit ─▶ the line ─▶ hand_out: whoever has room ─▶ engine ─▶ collect ─▶ finish ─▶ hand_out

The line is empty as long as an engine takes any number of requests. Leaves out what to generate
(the driver) and what to do about a loss (`generation`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence

from artifacts.new_tokens import News, NewTokens
from artifacts.records import Generated, Request
from tasks.engines.base import Engine, EngineLost, EngineStats
from tasks.rounds.buffered_engine import BufferedEngine
from tasks.rounds.elastic_engines import EngineJoined
from tasks.rounds.pending_requests import PendingRequests
from tasks.rounds.records import InFlight
from tasks.rounds.router import Router
from tasks.scheduling.balancing import Move


class EnginePool:
    """Which engine runs which request."""

    def __init__(self, engines: Sequence[Engine], most_running: int | None = None) -> None:
        """most_running: requests that each of these has at a time; None for any number."""
        # all that there ever were; a name is never another engine's
        self._engines: dict[str, Engine | BufferedEngine] = {
            engine.name: engine for engine in engines
        }
        self._elastic_workers: dict[str, BufferedEngine] = {}  # those of them that joined
        self._line = PendingRequests()  # what waits until an engine has room
        # what runs where; nobody else changes it
        self.router = Router([engine.name for engine in engines], most_running)
        # sampled tokens that what was sent had already, or that were told of since, by engine,
        # response id and attempt
        self._sent: dict[tuple[str, str, int], int] = {}
        self._left: dict[str, tuple[str, Request]] = {}  # what runs on, with its engine

    @property
    def alive(self) -> tuple[str, ...]:
        """Engines that have not been lost."""
        return self.router.alive

    @property
    def has_engines(self) -> bool:
        """Whether any engine has not been lost."""
        return self.router.num_alive > 0

    @property
    def has_elastic_workers(self) -> bool:
        """Whether an elastic worker takes requests."""
        return any(map(self.router.is_in_service, self._elastic_workers))

    @property
    def own(self) -> tuple[str, ...]:
        """Engines of the run itself that take requests."""
        return tuple(name for name in self.router.in_service if name not in self._elastic_workers)

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of all responses that some engine has not answered, or not got yet."""
        return (*self.router.running(), *self._line.response_ids)

    @property
    def is_idle(self) -> bool:
        """Whether the engines have answered everything, and nothing waits for one."""
        return not (self.router.num_in_all or self._line)

    @property
    def num_waiting(self) -> int:
        """Requests that no engine has room for."""
        return len(self._line)

    @property
    def awaits_weights(self) -> bool:
        """Whether nothing runs, and an engine that is there can have nothing of what waits."""
        return not self.router.num_in_all and bool(not self._line or self.router.in_service)

    @property
    def num_at_home(self) -> int:
        """Requests on the engines that the round began with."""
        return self.router.num_in_all - sum(map(self.num_running, self._elastic_workers))

    @property
    def num_elastic_workers(self) -> int:
        """Engines that joined and take requests."""
        return sum(map(self.router.is_in_service, self._elastic_workers))

    def add(self, joined: EngineJoined) -> bool:
        """Whether this elastic worker is new here; it takes requests from now on."""
        name = joined.engine.name
        if name in self._engines:
            return False
        self._elastic_workers[name] = self._engines[name] = BufferedEngine(joined.engine)
        self.router.add(name, joined.most_running, joined.version)
        return True

    def renew(self, name: str, version: int) -> None:
        """An elastic worker that is known here has these weights by now; nothing of one that is
        gone."""
        if name in self._elastic_workers and self.router.is_alive(name):
            self.router.renew(name, version)

    def retire_elastic_worker(self, name: str) -> tuple[str, ...]:
        """Give this engine no more requests, for it will be gone soon; the ids of what runs on
        it. Nothing where that is known, or the engine is not."""
        if not self.router.is_alive(name) or name in self.router.leaving:
            return ()
        self.router.leave(name)
        return tuple(request.response_id for request in self.router.requests(name))

    def dismiss(self) -> None:
        """Take the engines out that are leaving and have handed over all that they ran."""
        for name in self.router.leaving:
            if not self.router.num_running(name) and name not in self.left_on:
                self.remove(name)

    async def reading(self, name: str) -> EngineStats:
        """How this engine stands. Raises EngineLost."""
        return await self._engines[name].stats()

    def retire(self, names: Sequence[str]) -> tuple[str, ...]:
        """Give these engines no more requests; the ids of what runs on them."""
        for name in names:
            self.router.retire(name)
        return tuple(
            request.response_id for name in names for request in self.router.requests(name)
        )

    def num_running(self, name: str) -> int:
        """Requests that this engine has not answered."""
        return self.router.num_running(name)

    async def collect(self, name: str, wait_s: float) -> list[News]:
        """What this engine has ready; waits up to wait_s for the first. Raises EngineLost."""
        return await self._engines[name].collect(wait_s)

    def visited(self) -> dict[str, frozenset[str]]:
        """The engines that each response has been on, by its id."""
        engines = defaultdict[str, set[str]](set)
        for engine, response_id, _ in self._sent:
            engines[response_id].add(engine)
        return {name: frozenset(found) for name, found in engines.items()}

    def aim(self, moves: Iterable[Move]) -> list[str]:
        """Have these responses go on where they are wanted, once their engines have handed them
        over; the ids of those that still run where they were."""
        valid = [move for move in moves if self.router.where(move.response_id) == move.source]
        for move in valid:
            self._line.aim(move.response_id, move.target)
        return [move.response_id for move in valid]

    async def submit(self, requests: Sequence[Request]) -> dict[str, EngineLost]:
        """Spread these over the engines, behind what waits, one submission each; returns the
        engines that were found lost. They still hold theirs."""
        self._line.add(requests)
        return await self.hand_out()

    async def hand_out(self) -> dict[str, EngineLost]:
        """Send what waits where there is room, as `submit`."""
        batches: dict[str, list[Request]] = {}
        while (given := self._line.next(self.router.assign)) is not None:
            name, request = given
            self._sent[name, request.response_id, request.attempt] = request.num_kept
            batches.setdefault(name, []).append(request)
        return await _lost(
            {name: self._engines[name].submit(batch) for name, batch in batches.items()}
        )

    async def abort(self, response_ids: Sequence[str]) -> dict[str, EngineLost]:
        """Stop those of these that run, and forget those that wait; returns the engines that were
        found lost."""
        self._line.forget(response_ids)
        batches: dict[str, list[str]] = {}
        for name in response_ids:
            where = self.router.where(name)
            if where is not None:
                batches.setdefault(where, []).append(name)
        return await _lost(
            {name: self._engines[name].abort(batch) for name, batch in batches.items()}
        )

    def adopt(self, name: str, request: Request, num_kept: int) -> bool:
        """Whether this engine is there; it runs the request, which a round before sent it."""
        if not self.router.is_alive(name):
            return False
        self.router.adopt(name, request)
        self._sent[name, request.response_id, request.attempt] = num_kept
        return True

    async def leave(self, response_ids: Sequence[str]) -> dict[str, EngineLost]:
        """Wait for these no more and let them run on; an engine that is being waited for answers
        with what it has. What no engine has got yet is forgotten. Returns the engines that were
        found lost."""
        self._line.forget(response_ids)
        for response_id in response_ids:
            name = self.router.where(response_id)
            request = self.router.asked(name, response_id) if name is not None else None
            if name is not None and request is not None:
                self._left[response_id] = (name, request)
                self.router.finish(response_id)
        return await _lost({name: self._engines[name].abort(()) for name in self.left_on})

    def come_back(self) -> None:
        """Wait for everything again that was left."""
        for name, request in self._left.values():
            self.router.adopt(name, request)
        self._left.clear()

    @property
    def left_on(self) -> tuple[str, ...]:
        """The engines on which something runs on."""
        return tuple(dict.fromkeys(name for name, _ in self._left.values()))

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        """What runs on; an elastic worker that has not got every request may not have it."""
        return tuple(
            InFlight(
                engine=name,
                prompt_id=request.prompt_id,
                index=request.index,
                attempt=request.attempt,
                num_kept=self._sent[name, request.response_id, request.attempt],
                oldest_version=request.oldest_version,
            )
            for name, request in self._left.values()
            if name not in self._elastic_workers or self._elastic_workers[name].has_all
        )

    def is_expected(self, name: str, news: News) -> bool:
        """Whether this engine was asked for this and has not answered yet."""
        return self.expected(name, news) is not None

    def expected(self, name: str, news: News) -> Request | None:
        """What this engine was asked for and has not answered yet, by this round or by the one that
        left it, if this is said of it."""
        left_on, left = self._left.get(news.response_id, ("", None))
        request = left if left_on == name else self.router.asked(name, news.response_id)
        return request if request is not None and request.attempt == news.attempt else None

    def note_told(self, name: str, new: NewTokens) -> None:
        """These tokens of a response are accounted for, whatever becomes of the rest."""
        asked = (name, new.response_id, new.attempt)
        self._sent[asked] = self._sent.get(asked, 0) + len(new.token_ids)

    def num_new(self, name: str, generated: Generated) -> int:
        """Tokens of a response that this engine sampled: all but the kept ones that were sent, and
        those that it told of before."""
        sent = self._sent.get((name, generated.response_id, generated.attempt), 0)
        return generated.num_sampled + generated.num_forgotten - sent

    def finish(self, response_id: str) -> None:
        """The response is over, however it ended."""
        self.router.finish(response_id)
        self._left.pop(response_id, None)

    def remove(self, name: str) -> tuple[Request, ...]:
        """Take an engine out that is gone; what it had not answered."""
        if name in self._elastic_workers:
            self._elastic_workers[name].close()
        left = [request for where, request in self._left.values() if where == name]
        self._left = {left: where for left, where in self._left.items() if where[0] != name}
        return (*self.router.remove(name), *left)

    def hurry(self, most_s: float) -> None:
        """Elastic workers have so long to hand back what they run."""
        for elastic_worker in self._elastic_workers.values():
            elastic_worker.hurry(most_s)

    def close(self) -> None:
        """Tell elastic workers nothing more."""
        for elastic_worker in self._elastic_workers.values():
            elastic_worker.close()


async def _lost(calls: Mapping[str, Awaitable[None]]) -> dict[str, EngineLost]:
    """Await one call per engine; any other error than a loss is raised."""
    if not calls:
        return {}
    return losses(tuple(calls), await asyncio.gather(*calls.values(), return_exceptions=True))


def losses(names: Sequence[str], results: Sequence[object]) -> dict[str, EngineLost]:
    """The engines whose call ended with their loss; any other error is raised."""
    lost: dict[str, EngineLost] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, EngineLost):
            lost[name] = result
        elif isinstance(result, BaseException):
            raise result
    return lost
