"""The sources of a round's events: its engines, the feed of verdicts, publications of weights, news
of elastic workers, moves for balancing, and after a silence readings of the engines.

    next ─▶ poll every source that may have something ─▶ wait for the first ─▶ Incoming

An engine is polled only while it runs something, the feed only while a verdict is due, so that a
round ends the moment its last response does. A round that is silent for its deadline ends. The
engines are asked for their tokens only when nothing else has happened for a quarter of the
deadline: a busy round costs its engines no call, and a stall is noticed at most a quarter of the
deadline late.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from artifacts.new_tokens import NewTokens, split_news
from artifacts.records import Generated, Score
from tasks.engines.base import EngineLost, EngineStats
from tasks.rounds.elastic_engines import ElasticNews
from tasks.rounds.engine_pool import EnginePool
from tasks.rounds.rebalancing import Rebalancing
from tasks.rounds.records import RoundInputs
from tasks.scheduling.balancing import Move

POLL_S = 5.0  # longest single wait; every wait ends earlier when something happens
READINGS = 4  # of the engines, within one deadline
# names of the sources beside the engines' own
FEED = "<feed>"
PUBLICATIONS = "<publications>"
ELASTIC_WORKERS = "<elastic workers>"
MOVES = "<moves>"  # readings of all engines, for rebalancing
READING = "<reading>"  # before an engine's name: a reading after a silence

Answer = asyncio.Task[Any]  # Any: the source's own type; result() gives that, or raises its error


class LongPolls:
    """The open polls of a round's sources, at most one per source. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, Answer] = {}
        # sources whose poll has ended, some of them dropped since
        self._answered: deque[str] = deque()
        self._has_answered = asyncio.Event()

    def is_open(self, source: str) -> bool:
        """True while this source has yet to answer."""
        return source in self._open

    def open(self, source: str, poll: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start a poll of a source, unless one is open. Any: see Answer."""
        if source not in self._open:
            self._open[source] = asyncio.create_task(poll())
            self._open[source].add_done_callback(lambda _: self._note(source))

    def _note(self, source: str) -> None:
        self._answered.append(source)
        self._has_answered.set()

    async def next(self, wait_s: float) -> tuple[str, Answer]:
        """Wait for the next source to answer; returns its name and the ended task. Raises
        TimeoutError when no source answers within wait_s."""
        ends_s = asyncio.get_running_loop().time() + wait_s
        while True:
            while self._answered:
                source = self._answered.popleft()
                if source in self._open and self._open[source].done():
                    return source, self._open.pop(source)
            self._has_answered.clear()
            async with asyncio.timeout_at(ends_s):
                await self._has_answered.wait()

    def drop(self, source: str) -> None:
        """Cancel the poll of a source, if one is open."""
        if source in self._open:
            self._open.pop(source).cancel()

    def close(self) -> None:
        """Cancel every open poll."""
        for source in list(self._open):
            self.drop(source)


class SilenceWatch:
    """Tracks the deadline within which a token, a response or a verdict must come. Pure."""

    def __init__(self, deadline_s: float, now_s: float) -> None:
        self._deadline_s = deadline_s
        self._generated: dict[str, int] = {}  # tokens since its start, by engine, when last read
        self._unfinished: dict[str, int] = {}  # tokens of its unfinished responses, likewise
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        """Begin a new deadline, because something happened."""
        self._ends_s = now_s + self._deadline_s
        self._reading_s = now_s + self._deadline_s / READINGS

    def read(self, reading: EngineStats, now_s: float) -> None:
        """Record the reading of an engine; tokens generated since the last restart the deadline."""
        before = self._generated.get(reading.engine, reading.tokens_generated)
        self._generated[reading.engine] = reading.tokens_generated
        self._unfinished[reading.engine] = sum(reading.progress.values())
        self._reading_s = now_s + self._deadline_s / READINGS
        if reading.tokens_generated > before:
            self.restart(now_s)

    def is_reading_due(self, now_s: float) -> bool:
        """True after a silence long enough for a reading of the engines."""
        return now_s >= self._reading_s

    def is_over(self, now_s: float) -> bool:
        """True once the deadline has passed."""
        return now_s >= self._ends_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next reading is due, or the deadline passes."""
        is_due = self.is_reading_due(now_s)
        return max(0.0, (self._ends_s if is_due else min(self._ends_s, self._reading_s)) - now_s)

    def tokens_on(self, engine: str) -> int:
        """Tokens of the engine's unfinished responses when it was last read."""
        return self._unfinished.get(engine, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """The answer of one source."""

    engine: str = ""  # the engine that handed these responses back
    responses: Sequence[Generated] = ()  # finished or aborted
    new_tokens: Sequence[NewTokens] = ()  # of running responses, before those were over
    scores: Sequence[Score] = ()  # verdicts
    published: Sequence[int] = ()  # weight versions that every engine has now
    lost: Mapping[str, EngineLost] = field(default_factory=dict)  # engines that were found lost
    elastic_workers: Sequence[ElasticNews] = ()  # engines that come and go
    moves: Sequence[Move] = ()  # responses that are to go on in another engine


class EventSources:
    """Waits for all sources of one round."""

    def __init__(
        self, pool: EnginePool, inputs: RoundInputs, describe_stall: Callable[[], str]
    ) -> None:
        """describe_stall: makes the message of the TimeoutError after a silence of deadline_s."""
        self.awaited_weights_s = 0.0  # in which only newer weights could help
        self._pool = pool
        self._feed = inputs.feed
        self._publications = inputs.publications
        self._elastic_workers = inputs.elastic_workers
        self._rebalancing = Rebalancing(inputs.balancing, pool, among_own=inputs.plan.balances)
        self._describe_stall = describe_stall
        self._polls = LongPolls()
        self._answered: set[str] = set()  # engines whose poll has ended
        self._clock = asyncio.get_running_loop().time
        self._silence = SilenceWatch(inputs.deadline_s, self._clock())
        self._empty_s = inputs.empty_s
        self._had_engines_s = self._clock()  # when there was an engine last

    async def next(self, *, verdicts: bool, max_s: float = math.inf) -> Incoming:
        """Wait for the next answer of a source; it is empty when a poll ended without one. Raises
        TimeoutError after a silence of deadline_s, and EngineLost when there has been no engine for
        too long.

        verdicts: whether any are due. max_s: the longest wait. If only newer weights can help the
        round, there is no deadline here: the training of these weights, and their pull by an
        elastic worker, have deadlines of their own.
        """
        began_s = self._clock()
        self._open_polls(verdicts, began_s)
        self._check_engines(began_s)
        overlaps = self._publications is not None
        awaits_weights = overlaps and not verdicts and self._pool.awaits_weights
        if awaits_weights:
            self._silence.restart(began_s)
        try:
            source, answer = await self._polls.next(min(max_s, self._silence.wait_s(began_s)))
        except TimeoutError:
            if self._silence.is_over(self._clock()):
                raise TimeoutError(self._describe_stall()) from None
            return Incoming()
        finally:
            self.awaited_weights_s += self._clock() - began_s if awaits_weights else 0.0
        incoming = self._incoming(source, answer)
        generated = incoming.responses or incoming.new_tokens
        # an elastic worker that comes may take pending requests; without any, its coming and going
        # is no progress
        is_help = bool(incoming.elastic_workers) and self._pool.num_pending > 0
        if generated or incoming.scores or incoming.published or incoming.lost or is_help:
            self._silence.restart(self._clock())
        return incoming

    def _check_engines(self, now_s: float) -> None:
        """The run's own engines can be made anew; a longer wait for an elastic worker would cost
        more."""
        if self._pool.router.alive:
            self._had_engines_s = now_s
        elif now_s - self._had_engines_s > self._empty_s:
            raise EngineLost(
                f"no engine was left for {self._empty_s:.0f} s, and no elastic worker came"
            )

    def _open_polls(self, verdicts: bool, now_s: float) -> None:
        """Poll every source that may have something. Of the engines only those that got a request,
        or answered, since they were polled last: with the others nothing has changed."""
        pool, polls = self._pool, self._polls
        changed = self._answered | pool.router.take_given()
        self._answered = set()
        for name in sorted(filter(pool.router.num_running, changed), key=pool.router.order_of):
            polls.open(name, partial(pool.engines[name].collect, POLL_S))
        if self._silence.is_reading_due(now_s):
            for name in filter(pool.router.num_running, pool.router.alive):
                polls.open(READING + name, pool.engines[name].stats)
        if verdicts:
            polls.open(FEED, partial(self._feed.scored, POLL_S))
        if self._publications is not None:
            polls.open(PUBLICATIONS, partial(self._publications.published, POLL_S))
        if self._elastic_workers is not None:
            polls.open(ELASTIC_WORKERS, partial(self._elastic_workers.news, POLL_S))
        if self._rebalancing.is_worthwhile:
            polls.open(MOVES, self._rebalancing.next_moves)

    def _incoming(self, source: str, answer: Answer) -> Incoming:
        if source == FEED:
            return Incoming(scores=answer.result())
        if source == PUBLICATIONS:
            return Incoming(published=answer.result())
        if source == MOVES:
            return Incoming(moves=answer.result())
        if source == ELASTIC_WORKERS:
            if answer.result():  # with another engine the loads are worth a reading
                self._rebalancing.hurry()
            return Incoming(elastic_workers=answer.result())
        name = source.removeprefix(READING)
        self._answered.add(name)
        try:
            if name == source:
                responses, new_tokens = split_news(answer.result())
                return Incoming(engine=name, responses=responses, new_tokens=new_tokens)
            self._silence.read(answer.result(), self._clock())
            return Incoming()
        except EngineLost as error:
            return Incoming(lost={name: error})

    def describe(self) -> str:
        """Describe the engines that live and their tokens, for the deadline's error message."""
        running, tokens = self._pool.router.num_running, self._silence.tokens_on
        names = self._pool.router.alive
        engines = [f"{name} ({running(name)} running, {tokens(name)} tokens)" for name in names]
        pending = self._pool.num_pending
        queue = f"; {pending} requests wait for an engine with room" if pending else ""
        return f"alive: {', '.join(engines) or 'no engine'}{queue}"

    def only_engines(self, deadline_s: float) -> None:
        """Wait only for the engines from now on, with this deadline, and drop all other polls."""
        for source in (FEED, PUBLICATIONS, ELASTIC_WORKERS):
            self._polls.drop(source)
        self._publications = self._elastic_workers = None
        self._silence = SilenceWatch(deadline_s, self._clock())

    def are_polled(self, engines: Iterable[str]) -> bool:
        """True while a poll of one of these engines is open."""
        return any(map(self._polls.is_open, engines))

    def close(self) -> None:
        """Cancel all polls."""
        self._polls.close()
