"""The engines of a round as one pool: requests go out in batches, one call per engine; lost engines
are returned to the caller.

    submit ─▶ pending ─▶ hand_out: an engine with room ─▶ collect ─▶ finish ─▶ hand_out

Nothing is pending as long as an engine takes any number of requests. Leaves out what to generate
(`driver`) and what follows from a loss (`response_tracker`).
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from artifacts.new_tokens import News, NewTokens
from artifacts.records import Generated, Request
from tasks.engines.base import Engine, EngineLost
from tasks.rounds.elastic_engines import BufferedEngine, EngineJoined
from tasks.rounds.records import InFlight
from tasks.rounds.router import Router
from tasks.scheduling.balancing import Move

# the engine for a request, the second argument if that can take it; None when no engine has room,
# and weights that are new enough
Assign = Callable[[Request, str], str | None]


class PendingRequests:
    """Requests that wait for an engine with room, first in, first out. A request that needs newer
    weights than these engines have is passed over. Pure."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._targets: dict[str, str] = {}  # engines, by response id

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def response_ids(self) -> tuple[str, ...]:
        """The ids of the waiting requests, in order."""
        return tuple(request.response_id for request in self._requests)

    def add(self, requests: Iterable[Request]) -> None:
        """Append these requests."""
        self._requests += requests

    def aim(self, response_id: str, engine: str) -> None:
        """Prefer this engine when a request of this response is next handed out."""
        self._targets[response_id] = engine

    def forget(self, response_ids: Collection[str]) -> None:
        """Remove the requests of these responses."""
        if self._requests:
            unwanted = {*response_ids}
            self._requests = deque(
                request for request in self._requests if request.response_id not in unwanted
            )

    def next(self, assign: Assign) -> tuple[str, Request] | None:
        """Remove the first request that an engine can take; returns the engine's name and the
        request, or None when no engine can take any."""
        in_vain = math.inf  # no engine can take a request that needs weights so new
        for place, request in enumerate(self._requests):
            if request.oldest_version >= in_vain:
                continue
            name = assign(request, self._targets.get(request.response_id, ""))
            if name is not None:
                del self._requests[place]
                self._targets.pop(request.response_id, None)
                return name, request
            in_vain = request.oldest_version
        return None


class EnginePool:
    """The engines of one round and the requests on them. `engines` has every engine that the round
    ever had, by name; `router` knows which of them are alive and what runs on each, and only the
    pool changes it."""

    def __init__(self, engines: Sequence[Engine], max_running: int | None = None) -> None:
        """max_running: requests that each of these engines runs at a time; None for any number."""
        self.engines: dict[str, Engine | BufferedEngine] = {
            engine.name: engine for engine in engines
        }
        self.router = Router([engine.name for engine in engines], max_running)
        self._elastic_workers: dict[str, BufferedEngine] = {}  # the engines that joined
        self._pending = PendingRequests()
        # sampled tokens that a request had when it was sent, and those reported since, by engine,
        # response id and attempt
        self._sent: dict[tuple[str, str, int], int] = {}
        # requests that run on though nothing waits for them, with their engines
        self._left: dict[str, tuple[str, Request]] = {}

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the run's own engines that take requests."""
        return tuple(name for name in self.router.in_service if name not in self._elastic_workers)

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of all responses that run on an engine or are pending."""
        return (*self.router.running(), *self._pending.response_ids)

    @property
    def is_idle(self) -> bool:
        """True if the engines have answered every request, and none is pending."""
        return not (self.router.num_in_all or self._pending)

    @property
    def num_pending(self) -> int:
        """Number of requests that wait for an engine with room."""
        return len(self._pending)

    @property
    def awaits_weights(self) -> bool:
        """True if nothing runs and only newer weights can change that: nothing is pending, or the
        weights of the engines are too old for every pending request."""
        return not self.router.num_in_all and bool(not self._pending or self.router.in_service)

    @property
    def num_on_own(self) -> int:
        """Number of requests on the engines that the round began with."""
        on_others = sum(map(self.router.num_running, self._elastic_workers))
        return self.router.num_in_all - on_others

    @property
    def num_elastic_workers(self) -> int:
        """Number of elastic workers that take requests."""
        return sum(map(self.router.is_in_service, self._elastic_workers))

    def join(self, joined: EngineJoined) -> bool:
        """Add an elastic worker, or note the newer weights of one that joined before. Returns True
        if the worker is new; nothing changes for one that is gone."""
        name = joined.engine.name
        if name not in self.engines:
            self._elastic_workers[name] = self.engines[name] = BufferedEngine(joined.engine)
            self.router.add(name, joined.max_running, joined.version)
            return True
        if name in self._elastic_workers and self.router.is_alive(name):
            self.router.renew(name, joined.version)
        return False

    def retire(self, names: Sequence[str]) -> tuple[str, ...]:
        """Send these engines no more requests, unless no other engine is left; returns the ids of
        the responses that run on them."""
        for name in names:
            self.router.retire(name)
        return self._ids_on(names)

    def retire_leaving(self, name: str) -> tuple[str, ...]:
        """Send an engine that will be gone soon no more requests. Returns the ids of the responses
        that run on it, none if it is gone or is known to be leaving."""
        if not self.router.is_alive(name) or name in self.router.leaving:
            return ()
        self.router.leave(name)
        return self._ids_on([name])

    def _ids_on(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            request.response_id for name in names for request in self.router.requests(name)
        )

    def remove_emptied(self) -> None:
        """Remove the engines that are leaving and have handed over all that they ran."""
        for name in self.router.leaving:
            if not self.router.num_running(name) and name not in self.left_on:
                self.remove(name)

    def visited(self) -> dict[str, frozenset[str]]:
        """Names of the engines that each response has been sent to, by response id."""
        engines = defaultdict[str, set[str]](set)
        for engine, response_id, _ in self._sent:
            engines[response_id].add(engine)
        return {name: frozenset(found) for name, found in engines.items()}

    def aim(self, moves: Iterable[Move]) -> list[str]:
        """Send these responses to their targets once their engines have handed them over; returns
        the ids of those that still run at their source."""
        valid = [move for move in moves if self.router.where(move.response_id) == move.source]
        for move in valid:
            self._pending.aim(move.response_id, move.target)
        return [move.response_id for move in valid]

    async def submit(self, requests: Sequence[Request]) -> dict[str, EngineLost]:
        """Queue requests behind the pending ones and spread them over engines with room, in one
        submission per engine. Returns the engines found lost, which still hold their requests."""
        self._pending.add(requests)
        return await self.hand_out()

    async def hand_out(self) -> dict[str, EngineLost]:
        """Send pending requests to engines with room; returns the engines found lost."""
        batches = defaultdict[str, list[Request]](list)
        while (given := self._pending.next(self.router.assign)) is not None:
            name, request = given
            self._sent[name, request.response_id, request.attempt] = request.num_kept
            batches[name].append(request)
        return await _call(
            {name: self.engines[name].submit(sent) for name, sent in batches.items()}
        )

    async def abort(self, response_ids: Sequence[str]) -> dict[str, EngineLost]:
        """Stop these responses, and forget the pending ones; returns the engines found lost."""
        self._pending.forget(response_ids)
        batches = defaultdict[str, list[str]](list)
        for response_id in response_ids:
            if (name := self.router.where(response_id)) is not None:
                batches[name].append(response_id)
        return await _call({name: self.engines[name].abort(ids) for name, ids in batches.items()})

    def adopt(self, name: str, request: Request, num_kept: int) -> bool:
        """Take over a request that an earlier round sent to this engine, with num_kept sampled
        tokens. Returns False if the engine is gone."""
        if not self.router.is_alive(name):
            return False
        self.router.adopt(name, request)
        self._sent[name, request.response_id, request.attempt] = num_kept
        return True

    async def leave(self, response_ids: Sequence[str]) -> dict[str, EngineLost]:
        """Stop waiting for these responses, which run on; their engines answer an open poll at
        once. Pending ones are forgotten. Returns the engines that were found lost."""
        self._pending.forget(response_ids)
        for response_id in response_ids:
            name = self.router.where(response_id)
            request = self.router.requested(name, response_id) if name is not None else None
            if name is not None and request is not None:
                self._left[response_id] = (name, request)
                self.router.finish(response_id)
        return await _call({name: self.engines[name].abort(()) for name in self.left_on})

    def come_back(self) -> None:
        """Wait again for every response that was left to run on."""
        for name, request in self._left.values():
            self.router.adopt(name, request)
        self._left.clear()

    @property
    def left_on(self) -> tuple[str, ...]:
        """Names of the engines of the responses that were left to run on."""
        return tuple(dict.fromkeys(name for name, _ in self._left.values()))

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        """The responses that were left to run on. Those on an elastic worker that has yet to
        receive a request are left out, since that request may be theirs."""
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

    def expected(self, name: str, news: News) -> Request | None:
        """The request that an engine's news is about, if it is one of this round or one that was
        left to run on; None if the engine has no such request, or has answered it."""
        left_on, left = self._left.get(news.response_id, ("", None))
        request = left if left_on == name else self.router.requested(name, news.response_id)
        return request if request is not None and request.attempt == news.attempt else None

    def count_reported(self, name: str, new: NewTokens) -> None:
        """Count these tokens of a running response as reported, even if it is lost later."""
        key = (name, new.response_id, new.attempt)
        self._sent[key] = self._sent.get(key, 0) + len(new.token_ids)

    def num_new(self, name: str, generated: Generated) -> int:
        """Number of tokens of a response that this engine sampled and had not reported before. Kept
        tokens, which were sent with the request, do not count."""
        sent = self._sent.get((name, generated.response_id, generated.attempt), 0)
        return generated.num_sampled + generated.num_forgotten - sent

    def finish(self, response_id: str) -> None:
        """Forget a response that is over, however it ended."""
        self.router.finish(response_id)
        self._left.pop(response_id, None)

    def remove(self, name: str) -> tuple[Request, ...]:
        """Remove an engine that is gone; returns the requests that it had not answered."""
        if name in self._elastic_workers:
            self._elastic_workers[name].close()
        left = [request for where, request in self._left.values() if where == name]
        self._left = {left: where for left, where in self._left.items() if where[0] != name}
        return (*self.router.remove(name), *left)

    def hurry(self, max_s: float) -> None:
        """Give elastic workers max_s seconds to hand back their responses."""
        for elastic_worker in self._elastic_workers.values():
            elastic_worker.hurry(max_s)

    def close(self) -> None:
        """Send elastic workers no more calls."""
        for elastic_worker in self._elastic_workers.values():
            elastic_worker.close()


async def _call(calls: Mapping[str, Awaitable[None]]) -> dict[str, EngineLost]:
    """Await one call per engine, for their losses; any other error is raised."""
    if not calls:
        return {}
    return losses(tuple(calls), await asyncio.gather(*calls.values(), return_exceptions=True))


def losses(names: Sequence[str], results: Sequence[object]) -> dict[str, EngineLost]:
    """The engines whose call failed with EngineLost, by name. results: an answer or an exception
    for each name; any other exception is raised."""
    lost: dict[str, EngineLost] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, EngineLost):
            lost[name] = result
        elif isinstance(result, BaseException):
            raise result
    return lost
