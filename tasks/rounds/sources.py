"""Who tells a round what happens: its engines, the feed of verdicts, and in silence a reading.

    hear(...) ─▶ ask whoever is worth asking ─▶ wait for the first answer ─▶ Heard

Long polls: an engine is asked only while it runs something, the feed only while a verdict is due,
so that a round ends the moment its last response does. Leaves out what is made of the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from artifacts.records import Generated, Score
from tasks.engines.base import EngineLost
from tasks.rounds.dispatch import Dispatch
from tasks.rounds.polls import Answer, Polls
from tasks.rounds.progress import Progress
from tasks.rounds.records import Publications, ScoreFeed

POLL_S = 5.0  # longest single wait; every wait ends earlier when something happens
FEED = "<feed>"  # the feed's name among the engines' names
PUBLICATIONS = "<publications>"  # the name of those who publish weights
READING = "<reading>"  # before an engine's name: the question how much it has generated


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one of the sources said."""

    engine: str = ""  # who handed these responses back
    arrived: Sequence[Generated] = ()  # finished or aborted responses
    scores: Sequence[Score] = ()  # verdicts
    published: Sequence[int] = ()  # weight versions that every engine has now
    lost: Mapping[str, EngineLost] = field(default_factory=dict)  # engines that were found lost


class Sources:
    """Listens to all sources of one round."""

    def __init__(
        self,
        dispatch: Dispatch,
        feed: ScoreFeed,
        publications: Publications | None,
        deadline_s: float,
        stuck: Callable[[], str],
    ) -> None:
        """stuck: the words of the TimeoutError that ends a wait of deadline_s."""
        self.awaited_weights_s = 0.0  # in which only newer weights could help
        self._dispatch = dispatch
        self._feed = feed
        self._publications = publications
        self._stuck = stuck
        self._polls = Polls()
        self._clock = asyncio.get_running_loop().time
        self._progress = Progress(deadline_s, self._clock())

    async def hear(self, *, verdicts: bool) -> Heard:
        """The next answer; empty when a poll ended without one. Raises TimeoutError.

        verdicts: whether any are due. A round that only newer weights can help waits for as long as
        their training, which has deadlines of its own.
        """
        self._ask(verdicts)
        began_s = self._clock()
        awaits_weights = self._publications is not None and not (verdicts or self._dispatch.running)
        if awaits_weights:
            self._progress.heard(began_s)
        try:
            source, answer = await self._polls.next(self._progress.wait_s(began_s))
        except TimeoutError:
            if self._progress.is_over(self._clock()):
                raise TimeoutError(self._stuck()) from None
            return Heard()
        finally:
            self.awaited_weights_s += self._clock() - began_s if awaits_weights else 0.0
        heard = self._heard(source, answer)
        if heard.arrived or heard.scores or heard.published or heard.lost:
            self._progress.heard(self._clock())
        return heard

    def _ask(self, verdicts: bool) -> None:
        """Ask whoever may have something to say and is not being asked."""
        is_quiet = self._progress.is_look_due(self._clock())
        for name in self._dispatch.alive:
            if not self._dispatch.num_running(name):
                continue
            if not self._polls.is_asked(name):
                self._polls.ask(name, self._dispatch.collect(name, POLL_S))
            if is_quiet and not self._polls.is_asked(READING + name):
                self._polls.ask(READING + name, self._dispatch.reading(name))
        if verdicts and not self._polls.is_asked(FEED):
            self._polls.ask(FEED, self._feed.scored(POLL_S))
        if self._publications is not None and not self._polls.is_asked(PUBLICATIONS):
            self._polls.ask(PUBLICATIONS, self._publications.published(POLL_S))

    def _heard(self, source: str, answer: Answer) -> Heard:
        if source == FEED:
            return Heard(scores=answer.result())
        if source == PUBLICATIONS:
            return Heard(published=answer.result())
        name = source.removeprefix(READING)
        try:
            if name == source:
                return Heard(engine=name, arrived=answer.result())
            self._progress.look(answer.result(), self._clock())
            return Heard()
        except EngineLost as error:
            return Heard(lost={name: error})

    def describe(self) -> str:
        """For the deadline's error message: who is there, and how far each has come."""
        running, tokens = self._dispatch.num_running, self._progress.tokens_on
        names = self._dispatch.alive
        told = [f"{name} ({running(name)} running, {tokens(name)} tokens)" for name in names]
        return f"alive: {', '.join(told)}"

    def only_engines(self, deadline_s: float) -> None:
        """Expect no verdict any more, and let a wait for the engines last this long from now on."""
        self._polls.drop(FEED)
        self._polls.drop(PUBLICATIONS)
        self._publications = None
        self._progress = Progress(deadline_s, self._clock())

    def are_asked(self, engines: Iterable[str]) -> bool:
        """Whether one of these engines has yet to say what it has."""
        return any(map(self._polls.is_asked, engines))

    def close(self) -> None:
        """Ask nobody any more."""
        self._polls.close()
