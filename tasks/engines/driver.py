"""Plays one round: carries out the scheduler's decisions on the engines, and tells it what happened.

    scheduler ──launch──▶ router ──▶ engines ──finished──▶ ScoreFeed.publish
        ▲  └───abort──────────────────▶│                        │
        └────────── events ◀───────────┴── ScoreFeed.scored ◀───┘        accepted groups ──▶ on_accept

One loop over long polls: an engine is asked only while it runs something, the feed only while a verdict is due, so the round ends the
moment its last response does. All decisions of one answer go to an engine in one call, so that a round's opening is one batch per
engine and samples the same tokens every time. The same code drives real engines and simulated ones on a virtual clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from artifacts.records import Generated, Group, Prompt, Request, Response, Score, response_id
from tasks.engines.base import Engine, EngineLost
from tasks.engines.router import Router
from tasks.engines.sampling import SamplingConfig
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    CloseRound,
    Decision,
    Defer,
    Drop,
    Event,
    Filter,
    Finished,
    Launch,
    Lost,
    RoundPlan,
    RoundScheduler,
    Scored,
)
from tasks.scheduling.seeds import derive_seed

logger = logging.getLogger(__name__)

POLL_S = 5.0  # longest single wait; every wait ends earlier when something happens
FEED = ""  # the feed's name among the engines' names
STOP_S = 30.0  # how long engines may take to fall idle after a failure


class ScoreFeed(Protocol):
    """The reward stage as the driver sees it."""

    async def publish(self, generated: Sequence[Generated]) -> None:
        """Hand finished responses over for scoring."""
        ...

    async def scored(self, wait_s: float) -> list[Score]:
        """Verdicts since the last call; waits up to wait_s for the first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round brought home; every generated token is in it once."""

    groups: tuple[Group, ...]  # accepted, in acceptance order
    deferred: tuple[str, ...]  # prompt ids for the long-prompt queue
    dropped: tuple[str, ...]  # prompt ids given up
    filtered: tuple[str, ...]  # prompt ids of complete groups that were not worth training on
    generated: tuple[Generated, ...]  # every response, aborted ones included
    scores: tuple[Score, ...]  # every verdict that came in time


async def drive_round(
    *,
    plan: RoundPlan,
    prompts: Mapping[str, Prompt],
    scheduler: RoundScheduler,
    engines: Sequence[Engine],
    feed: ScoreFeed,
    sampling: SamplingConfig,
    recorded: Iterable[Response],
    seed: int,
    deadline_s: float,
    on_finished: Callable[[Sequence[Generated]], None],
    on_accept: Callable[[Group], Awaitable[None]],
) -> RoundResult:
    """Play the round to its end. `recorded` responses stand in for their launches: they are not generated again.

    However it ends, nothing of it runs on an engine afterwards. Raises TimeoutError when nothing happens for deadline_s, and
    EngineLost when the last engine is gone.
    """
    round_ = _Round(plan, prompts, scheduler, engines, feed, sampling, recorded, seed, on_finished, on_accept)
    return await round_.play(deadline_s)


class _Round:
    def __init__(
        self,
        plan: RoundPlan,
        prompts: Mapping[str, Prompt],
        scheduler: RoundScheduler,
        engines: Sequence[Engine],
        feed: ScoreFeed,
        sampling: SamplingConfig,
        recorded: Iterable[Response],
        seed: int,
        on_finished: Callable[[Sequence[Generated]], None],
        on_accept: Callable[[Group], Awaitable[None]],
    ) -> None:
        self._plan, self._prompts, self._scheduler = plan, prompts, scheduler
        self._feed, self._sampling, self._seed = feed, sampling, seed
        self._on_finished, self._on_accept = on_finished, on_accept
        self._engines = {engine.name: engine for engine in engines}
        self._router = Router([engine.name for engine in engines])
        self._recorded = {one.generated.response_id: one for one in recorded if one.generated.finish_reason != "aborted"}
        self._generated: dict[str, Generated] = {}
        self._scores: dict[str, Score] = {}
        self._unscored: set[str] = set()
        self._groups: list[Group] = []
        self._deferred: list[str] = []
        self._dropped: list[str] = []
        self._filtered: list[str] = []
        self._closed = False
        self._aborted: set[str] = set()
        self._polls: dict[str, asyncio.Task[Any]] = {}  # Any: responses of an engine, or verdicts; by engine's name or FEED
        self._answered: asyncio.Queue[str] = asyncio.Queue()  # whose poll has ended

    async def play(self, deadline_s: float) -> RoundResult:
        try:
            await self._decide(self._scheduler.start())
            while not self._closed or any(self._router.num_running(name) for name in self._router.alive):
                await self._listen(deadline_s)
        except BaseException:
            await self._stop()
            raise
        finally:
            for poll in self._polls.values():
                poll.cancel()
        return RoundResult(
            groups=tuple(self._groups),
            deferred=tuple(self._deferred),
            dropped=tuple(self._dropped),
            filtered=tuple(self._filtered),
            generated=(*self._generated.values(), *(one.generated for one in self._recorded.values())),
            scores=tuple(self._scores.values()),
        )

    async def _stop(self) -> None:
        """After a failure: leave the engines idle, for the next attempt asks them for the same responses."""
        self._closed = True
        if FEED in self._polls:
            self._polls.pop(FEED).cancel()
        try:
            async with asyncio.timeout(STOP_S):
                await self._abort(self._router.running())
                while self._router.running():
                    await self._listen(STOP_S)
        except (EngineLost, TimeoutError) as error:  # the caller must hear of the failure that led here, not of this one
            logger.warning("step=%d not_idle=%s reason=%s", self._plan.step, ",".join(self._router.running()), error)

    async def _listen(self, deadline_s: float) -> None:
        """Wait until a poll has something to say, and act on it; answers are taken in the order they came."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline_s
        heard = False
        while not heard:
            self._poll()
            source = await self._next_answer(ends - loop.time(), deadline_s)
            poll = self._polls.pop(source, None)
            heard = poll is not None and await self._hear(source, poll)

    async def _next_answer(self, left_s: float, deadline_s: float) -> str:
        if not self._answered.empty():
            return self._answered.get_nowait()
        try:
            return await asyncio.wait_for(self._answered.get(), left_s)
        except TimeoutError:
            raise TimeoutError(self._stuck(deadline_s)) from None

    def _poll(self) -> None:
        """Ask whoever may have something to say and is not being asked."""
        for name in self._router.alive:
            if name not in self._polls and self._router.num_running(name):
                self._ask(name, self._engines[name].collect(POLL_S))
        if FEED not in self._polls and self._unscored and not self._closed:
            self._ask(FEED, self._feed.scored(POLL_S))

    def _ask(self, source: str, call: Coroutine[Any, Any, Any]) -> None:  # Any: see _polls
        self._polls[source] = asyncio.create_task(call)
        self._polls[source].add_done_callback(lambda _: self._answered.put_nowait(source))

    async def _hear(self, source: str, poll: asyncio.Task[Any]) -> bool:  # Any: see _polls
        """Act on one answer; True if it said anything."""
        if source == FEED:
            scores: list[Score] = poll.result()
            for score in scores:
                await self._score(score)
            return bool(scores)
        try:
            arrived: list[Generated] = poll.result()
        except EngineLost as error:
            await self._lose(source, error)
            return True
        if source in self._router.alive:  # what a lost engine still says was launched again elsewhere
            await self._finish(arrived)
        return bool(arrived)

    async def _finish(self, arrived: Sequence[Generated]) -> None:
        for one in arrived:
            self._router.finish(one.response_id)
            self._generated[one.response_id] = one
        whole = [one for one in arrived if one.finish_reason != "aborted"]
        self._on_finished(whole)
        for one in arrived:
            if one.finish_reason == "aborted" and one.response_id not in self._aborted:  # the engine's own doing
                await self._tell(Lost(prompt_id=one.prompt_id, index=one.index))
        if self._closed or not whole:
            return
        self._unscored |= {one.response_id for one in whole}
        await self._feed.publish(whole)
        for one in whole:
            await self._tell(Finished(prompt_id=one.prompt_id, index=one.index, num_tokens=len(one.token_ids)))

    async def _score(self, score: Score) -> None:
        name = response_id(score.prompt_id, score.index)
        self._unscored.discard(name)
        self._scores[name] = score
        await self._tell(Scored(prompt_id=score.prompt_id, index=score.index, outcome=score.outcome, reward=score.reward))

    async def _lose(self, name: str, error: EngineLost) -> None:
        """An engine is gone: the scheduler hears of every response that went with it, and launches what it still wants."""
        lost = self._router.remove(name)
        if not self._router.alive and not self._closed:
            raise EngineLost(f"no engine is left, {name} was the last: {error}") from error
        for request in lost:
            await self._tell(Lost(prompt_id=request.prompt_id, index=request.index))

    async def _tell(self, event: Event) -> None:
        if not self._closed:
            await self._decide(self._scheduler.handle(event))

    async def _decide(self, decisions: Sequence[Decision]) -> None:
        """Carry out one answer of the scheduler: its launches together, the rest in order."""
        await self._launch([one for one in decisions if isinstance(one, Launch)])
        aborts: list[str] = []
        for decision in decisions:
            match decision:
                case Abort(prompt_id=prompt_id, indices=indices):
                    aborts += [response_id(prompt_id, index) for index in indices]
                case AcceptGroup():
                    await self._accept(decision)
                case Defer(prompt_id=prompt_id):
                    self._deferred.append(prompt_id)
                case Drop(prompt_id=prompt_id):
                    self._dropped.append(prompt_id)
                case Filter(prompt_id=prompt_id):
                    self._filtered.append(prompt_id)
                case CloseRound():
                    self._closed = True
        await self._abort(aborts)

    async def _launch(self, launches: Sequence[Launch]) -> None:
        batches: dict[str, list[Request]] = {}
        known: list[Response] = []
        for launch in launches:
            name = response_id(launch.prompt_id, launch.index)
            if name in self._recorded:
                known.append(self._recorded.pop(name))
            else:
                request = self._request(launch)
                batches.setdefault(self._router.assign(request), []).append(request)
        calls = {name: self._engines[name].submit(batch) for name, batch in batches.items()}
        await self._all(calls)
        for response in known:
            await self._replay(response)

    async def _replay(self, response: Response) -> None:
        """A recorded response takes the place of its launch."""
        one = response.generated
        if response.score is None:
            await self._finish([one])
            return
        self._generated[one.response_id] = one
        self._on_finished([one])
        await self._tell(Finished(prompt_id=one.prompt_id, index=one.index, num_tokens=len(one.token_ids)))
        await self._score(response.score)

    def _request(self, launch: Launch) -> Request:
        return Request(
            prompt_id=launch.prompt_id,
            index=launch.index,
            prompt_tokens=self._prompts[launch.prompt_id].token_ids,
            max_new_tokens=self._sampling.max_response_tokens,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            seed=derive_seed(self._seed, launch.prompt_id, launch.index),  # without the step: a deferred prompt draws as it did before
        )

    async def _abort(self, names: Sequence[str]) -> None:
        self._aborted |= set(names)
        batches: dict[str, list[str]] = {}
        for name in names:
            where = self._router.where(name)
            if where is not None:
                batches.setdefault(where, []).append(name)
        await self._all({name: self._engines[name].abort(batch) for name, batch in batches.items()})

    async def _all(self, calls: Mapping[str, Awaitable[None]]) -> None:
        """Await one call per engine; an engine that is lost on the way is taken out."""
        results = await asyncio.gather(*calls.values(), return_exceptions=True)
        for name, result in zip(calls, results, strict=True):
            if isinstance(result, EngineLost):
                await self._lose(name, result)
            elif isinstance(result, BaseException):
                raise result

    async def _accept(self, decision: AcceptGroup) -> None:
        names = [response_id(decision.prompt_id, index) for index in decision.indices]
        responses = tuple(Response(generated=self._generated[name], score=self._scores[name]) for name in names)
        group = Group(prompt=self._prompts[decision.prompt_id], responses=responses)
        self._groups.append(group)
        await self._on_accept(group)

    def _stuck(self, deadline_s: float) -> str:
        alive = ", ".join(f"{name} ({self._router.num_running(name)} running)" for name in self._router.alive)
        return (
            f"the {self._plan.kind} round of step {self._plan.step} waited {deadline_s:.0f} s for {self._scheduler.waiting_for()}; "
            f"alive: {alive}; {len(self._unscored)} responses wait for a verdict"
        )
