"""The elastic workers of a round: the keeper's notices, read from the sample buffer, with a handle
on each engine that joined."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from distributed import get_client

from tasks.cluster.actors import ActorLost, Remote
from tasks.elastic.worker_card import TOPIC, given_up
from tasks.engines.base import Engine
from tasks.engines.remote import EngineClient, RemoteEngine
from tasks.rounds.elastic_engines import (
    ElasticNews,
    EngineGone,
    EngineJoined,
    EngineLeaving,
    WorkerNotice,
)
from tasks.run.run_context import RunContext
from tasks.run.sample_buffer import ELASTIC_WORKERS
from tasks.run.sample_stream import SampleStream

logger = logging.getLogger(__name__)

CONNECT_S = 10.0  # an elastic worker whose link is cut holds up no round for longer


@dataclass(frozen=True, slots=True)
class StreamWorkers:
    """`ElasticWorkers` of one round, which learns of them through its sample stream."""

    stream: SampleStream
    connect: Callable[[str], Engine]  # by name; raises ActorLost if it is gone meanwhile
    # sends a message of the topic of elastic workers; blocks
    tell_keeper: Callable[[dict[str, str]], None]
    max_running: int | None = None  # requests that each takes at a time
    connected: dict[str, Engine] = field(default_factory=dict)  # by name

    async def give_up(self, name: str, reason: str) -> None:
        """Notify the rounds first: the keeper may be slow to answer."""
        logger.warning("elastic_worker=%s given up: %s", name, reason)
        self.connected.pop(name, None)
        try:
            await self.stream.announce_worker(WorkerNotice(name=name, kind="gone", reason=reason))
            async with asyncio.timeout(CONNECT_S):
                await asyncio.to_thread(self.tell_keeper, given_up(name, reason))
        except (ActorLost, OSError) as error:  # TimeoutError and Dask's of communication are such
            logger.warning("elastic_worker=%s given up, not told: %s", name, error)

    async def news(self, wait_s: float) -> list[ElasticNews]:
        told, _ = await self.stream.take(ELASTIC_WORKERS, max_items=64, wait_s=wait_s)
        news = await asyncio.gather(*map(self._news, told))  # in this order
        return [each for each in news if each is not None]

    async def _news(self, told: WorkerNotice) -> ElasticNews | None:
        """What the round is told; nothing of one that joined and is gone by now."""
        match told.kind:
            case "leaving":
                return EngineLeaving(name=told.name)
            case "gone":
                self.connected.pop(told.name, None)
                return EngineGone(name=told.name, reason=told.reason)
        try:
            engine = self.connected.get(told.name)
            if engine is None:  # else one that joined before tells of newer weights
                async with asyncio.timeout(CONNECT_S):
                    engine = await asyncio.to_thread(self.connect, told.name)
                self.connected[told.name] = engine
        except (ActorLost, TimeoutError) as error:
            logger.info("elastic_worker=%s is gone before it was asked: %s", told.name, error)
            return None
        return EngineJoined(
            engine=engine,
            devices=told.devices,
            version=told.version,
            max_running=self.max_running,
        )


def workers_of_round(
    run: RunContext, stream: SampleStream, asker: EngineClient
) -> StreamWorkers | None:
    """The elastic workers of this run, for a round; None in a run that accepts none. Must be called
    in a task on a Dask worker. asker: the client in whose name they are called. A call waits no
    longer than the lease: a worker that cannot renew that cannot answer either."""
    config = run.elastic
    if not config.enabled:
        return None
    client = get_client()  # known to this thread alone

    def connect(name: str) -> Engine:
        return RemoteEngine(Remote.connect(run.run_id, name, client), config.lease_s, asker)

    def tell_keeper(message: dict[str, str]) -> None:
        client.log_event(TOPIC, message)

    return StreamWorkers(stream, connect, tell_keeper, config.max_running_per_worker)
