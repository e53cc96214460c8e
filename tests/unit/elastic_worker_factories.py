"""Elastic workers of simulated rounds: who tells of them, and engines that watch what they are
asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from round_factories import ENGINE

from artifacts.records import Generated, Request
from tasks.engines.base import Engine, EngineStats
from tasks.engines.mailbox import Mailbox
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.writers import BlankWriter
from tasks.rounds.elastic_engines import ElasticNews, EngineGone, EngineJoined, EngineLeaving
from tasks.scheduling.prompt_stream import derive_seed


class Door:
    """Tells a round of its elastic workers (`Elastic workers`)."""

    def __init__(self, *news: ElasticNews) -> None:
        self._news = Mailbox[ElasticNews]()
        self.given_up: dict[str, str] = {}  # reasons, by the elastic worker's name
        self.tell(*news)

    def tell(self, *news: ElasticNews) -> None:
        for told in news:
            self._news.put(told)

    def tell_at(self, time_s: float, *news: ElasticNews) -> None:
        asyncio.get_running_loop().call_at(time_s, self.tell, *news)

    async def news(self, wait_s: float) -> list[ElasticNews]:
        return await self._news.take(wait_s)

    async def give_up(self, name: str, reason: str) -> None:
        self.given_up[name] = reason


class TellingWriter(BlankWriter):
    """Says something else at every place of every response."""

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        return tuple((noise + 31 * place * place) % 997 for place in range(num_tokens))


def undisturbed_tokens(
    prompt_id: str, index: int, max_response_tokens: int = 2000
) -> tuple[int, ...]:
    """What an engine says that generates a response without a break."""
    noise = derive_seed(0, prompt_id, index)
    length = min(ENGINE.lengths.tokens(prompt_id, index, noise), max_response_tokens)
    return tuple((noise + 31 * place * place) % 997 for place in range(length))


class WatchedEngine(SimulatedEngine):
    """Remembers what it was asked, and the most that it had to do at a time."""

    def __init__(self, name: str, config: SimulatedEngineConfig = ENGINE, version: int = 0) -> None:
        super().__init__(name, config, version, TellingWriter(config.lengths))
        self.submitted: list[Request] = []
        self.aborted: list[str] = []
        self.max_running = 0
        self.finished_s: list[float] = []  # when it handed something back
        self._unanswered: set[str] = set()

    @property
    def version(self) -> int:
        """Of its weights."""
        return self._version

    async def submit(self, requests: Sequence[Request]) -> None:
        self.submitted += requests
        self._unanswered |= {request.response_id for request in requests}
        self.max_running = max(self.max_running, len(self._unanswered))
        await super().submit(requests)

    async def abort(self, response_ids: Sequence[str]) -> None:
        self.aborted += response_ids
        await super().abort(response_ids)

    async def collect(self, wait_s: float) -> list[Generated]:
        done = await super().collect(wait_s)
        self._unanswered -= {response.response_id for response in done}
        self.finished_s += [response.finished_s for response in done]
        return done


class House:
    """Whoever admits elastic workers through a run: tells every round that begins of those
    present."""

    def __init__(self) -> None:
        self.given_up: dict[str, str] = {}  # by rounds; reasons, by the elastic worker's name
        self._present: dict[str, tuple[WatchedEngine, int | None]] = {}
        self._door = Door()

    def open(self) -> Door:
        """Of the round that begins."""
        self._door = Door(*(self._told(name) for name in self._present))
        self._door.given_up = self.given_up
        return self._door

    def join(self, engine: WatchedEngine, max_running: int | None = None) -> None:
        self._present[engine.name] = engine, max_running
        self._door.tell(self._told(engine.name))

    def has(self, name: str) -> bool:
        return name in self._present

    def leave(self, name: str) -> None:
        self._present.pop(name, None)
        self._door.tell(EngineLeaving(name=name))

    def lose(self, name: str) -> None:
        self._present.pop(name, None)
        self._door.tell(EngineGone(name=name, reason="its lease is over"))

    def _told(self, name: str) -> EngineJoined:
        engine, max_running = self._present[name]
        return joined(engine, engine.version, max_running)


class HangingEngine(WatchedEngine):
    """Answers nothing any more from some moment on."""

    hangs = False

    async def submit(self, requests: Sequence[Request]) -> None:
        await self._hang()
        await super().submit(requests)

    async def abort(self, response_ids: Sequence[str]) -> None:
        await self._hang()
        await super().abort(response_ids)

    async def collect(self, wait_s: float) -> list[Generated]:
        done = await super().collect(wait_s)
        await self._hang()
        return done

    async def stats(self) -> EngineStats:
        await self._hang()
        return await super().stats()

    async def _hang(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()


class SlowEngine(WatchedEngine):
    """Takes requests only after a while."""

    async def submit(self, requests: Sequence[Request]) -> None:
        await asyncio.sleep(30.0)
        await super().submit(requests)


def joined(engine: Engine, version: int = 0, max_running: int | None = None) -> EngineJoined:
    devices = (f"{engine.name}:0",)
    return EngineJoined(engine=engine, devices=devices, version=version, max_running=max_running)
