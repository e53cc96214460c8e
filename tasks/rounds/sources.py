"""Who tells a round what happens: its engines, the feed of verdicts, those who admit elastic
workers, and in silence a reading.

    hear(...) ─▶ ask whoever is worth asking ─▶ wait for the first answer ─▶ Heard

Long polls: an engine is asked only while it runs something, the feed only while a verdict is due,
so that a round ends the moment its last response does. Leaves out what is made of the answers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from artifacts.new_tokens import NewTokens, split_news
from artifacts.records import Generated, Score
from tasks.engines.base import EngineLost
from tasks.rounds.elastic_engines import ElasticNews
from tasks.rounds.engine_pool import EnginePool
from tasks.rounds.polls import Answer, Polls
from tasks.rounds.progress import Progress
from tasks.rounds.rebalancing import Rebalancing
from tasks.rounds.records import RoundInputs
from tasks.scheduling.balancing import Move

POLL_S = 5.0  # longest single wait; every wait ends earlier when something happens
FEED = "<feed>"  # the feed's name among the engines' names
PUBLICATIONS = "<publications>"  # the name of those who publish weights
ELASTIC_WORKERS = "<elastic workers>"  # the name of those who admit elastic workers
LOOK = "<look>"  # the name of the look at what the engines have to do
READING = "<reading>"  # before an engine's name: the question how much it has generated


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """What one of the sources said."""

    engine: str = ""  # who handed these responses back
    arrived: Sequence[Generated] = ()  # finished or aborted responses
    told: Sequence[NewTokens] = ()  # new tokens of running ones, told before those were over
    scores: Sequence[Score] = ()  # verdicts
    published: Sequence[int] = ()  # weight versions that every engine has now
    lost: Mapping[str, EngineLost] = field(default_factory=dict)  # engines that were found lost
    elastic_workers: Sequence[ElasticNews] = ()  # engines that come and go
    moves: Sequence[Move] = ()  # responses that are to go on in another engine


class EventSources:
    """Listens to all sources of one round."""

    def __init__(
        self,
        dispatch: EnginePool,
        inputs: RoundInputs,
        stuck: Callable[[], str],
    ) -> None:
        """stuck: the words of the TimeoutError that ends a wait of deadline_s."""
        self.awaited_weights_s = 0.0  # in which only newer weights could help
        self._dispatch = dispatch
        self._feed = inputs.feed
        self._publications = inputs.publications
        self._elastic_workers = inputs.elastic_workers
        self._rebalancing = Rebalancing(
            inputs.balancing, dispatch, without_elastic_workers=inputs.plan.balances
        )
        self._stuck = stuck
        self._polls = Polls()
        self._unasked: set[str] = set()  # engines that have answered
        self._clock = asyncio.get_running_loop().time
        self._progress = Progress(inputs.deadline_s, self._clock())
        self._empty_s = inputs.empty_s
        self._had_engines_s = self._clock()  # when there was one last

    async def hear(self, *, verdicts: bool, most_s: float = math.inf) -> Incoming:
        """The next answer; empty when a poll ended without one. Raises TimeoutError, and EngineLost
        when there has been no engine for too long.

        verdicts: whether any are due. most_s: how long to wait for it. A round that only newer
        weights can help, in all engines or in an elastic worker that lags, waits for as long as
        their training or its pull, which have deadlines of their own.
        """
        self._ask(verdicts)
        began_s = self._clock()
        self._check_engines(began_s)
        overlaps = self._publications is not None
        awaits_weights = overlaps and not verdicts and self._dispatch.awaits_weights
        if awaits_weights:
            self._progress.heard(began_s)
        try:
            source, answer = await self._polls.next(min(most_s, self._progress.wait_s(began_s)))
        except TimeoutError:
            if self._progress.is_over(self._clock()):
                raise TimeoutError(self._stuck()) from None
            return Incoming()
        finally:
            self.awaited_weights_s += self._clock() - began_s if awaits_weights else 0.0
        heard = self._heard(source, answer)
        generated = heard.arrived or heard.told
        # an elastic worker that comes helps on what waits for one; elastic workers that only come
        # and go help nobody
        is_help = bool(heard.elastic_workers) and self._dispatch.num_waiting > 0
        if generated or heard.scores or heard.published or heard.lost or is_help:
            self._progress.heard(self._clock())
        return heard

    def _check_engines(self, now_s: float) -> None:
        """Those of the run can be made anew; to wait for an elastic worker any longer would cost
        more."""
        if self._dispatch.has_engines:
            self._had_engines_s = now_s
        elif now_s - self._had_engines_s > self._empty_s:
            raise EngineLost(
                f"no engine was left for {self._empty_s:.0f} s, and no elastic worker came"
            )

    def _ask(self, verdicts: bool) -> None:
        """Ask whoever may have something to say and is not being asked."""
        self._ask_engines()
        if self._progress.is_look_due(self._clock()):
            self._ask_for_readings()
        if verdicts and not self._polls.is_asked(FEED):
            self._polls.ask(FEED, self._feed.scored(POLL_S))
        if self._publications is not None and not self._polls.is_asked(PUBLICATIONS):
            self._polls.ask(PUBLICATIONS, self._publications.published(POLL_S))
        if self._elastic_workers is not None and not self._polls.is_asked(ELASTIC_WORKERS):
            self._polls.ask(ELASTIC_WORKERS, self._elastic_workers.news(POLL_S))
        if self._rebalancing.is_worthwhile and not self._polls.is_asked(LOOK):
            self._polls.ask(LOOK, self._rebalancing.look())

    def _ask_engines(self) -> None:
        """Only those that got something, or answered, since they were asked last: of the others
        nothing has changed."""
        changed = self._unasked | self._dispatch.router.take_given()
        self._unasked = set()
        running = [name for name in changed if self._dispatch.num_running(name)]
        for name in sorted(running, key=self._dispatch.router.place):
            if not self._polls.is_asked(name):
                self._polls.ask(name, self._dispatch.collect(name, POLL_S))

    def _ask_for_readings(self) -> None:
        """It has been quiet: whoever runs something is to say how far it has come."""
        for name in filter(self._dispatch.num_running, self._dispatch.alive):
            if not self._polls.is_asked(READING + name):
                self._polls.ask(READING + name, self._dispatch.reading(name))

    def _heard(self, source: str, answer: Answer) -> Incoming:
        if source == FEED:
            return Incoming(scores=answer.result())
        if source == PUBLICATIONS:
            return Incoming(published=answer.result())
        if source == ELASTIC_WORKERS:
            return self._heard_elastic_workers(answer.result())
        if source == LOOK:
            return Incoming(moves=answer.result())
        name = source.removeprefix(READING)
        self._unasked.add(name)
        try:
            if name == source:
                over, told = split_news(answer.result())
                return Incoming(engine=name, arrived=over, told=told)
            self._progress.look(answer.result(), self._clock())
            return Incoming()
        except EngineLost as error:
            return Incoming(lost={name: error})

    def _heard_elastic_workers(self, news: Sequence[ElasticNews]) -> Incoming:
        """With another engine it is worth a look who has how much to do."""
        if news:
            self._rebalancing.hurry()
        return Incoming(elastic_workers=news)

    def describe(self) -> str:
        """For the deadline's error message: who is there, and how far each has come."""
        running, tokens = self._dispatch.num_running, self._progress.tokens_on
        names = self._dispatch.alive
        told = [f"{name} ({running(name)} running, {tokens(name)} tokens)" for name in names]
        waiting = self._dispatch.num_waiting
        line = f"; {waiting} requests wait for an engine with room" if waiting else ""
        return f"alive: {', '.join(told) or 'no engine'}{line}"

    def only_engines(self, deadline_s: float) -> None:
        """Expect no verdict any more, and let a wait for the engines last this long from now on."""
        for source in (FEED, PUBLICATIONS, ELASTIC_WORKERS):
            self._polls.drop(source)
        self._publications = None
        self._elastic_workers = None
        self._progress = Progress(deadline_s, self._clock())

    def are_asked(self, engines: Iterable[str]) -> bool:
        """Whether one of these engines has yet to say what it has."""
        return any(map(self._polls.is_asked, engines))

    def close(self) -> None:
        """Ask nobody any more."""
        self._polls.close()
