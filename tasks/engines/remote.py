"""An engine in a Dask worker: the actor that holds it, and the Engine that callers see.

    round ──────▶ RemoteEngine ─▶ bytes over Dask ─▶ EngineActor ─▶ ResponseMux ─▶ Replica
    evaluation ─▶ RemoteEngine ─▶                                   one mailbox for each client

Only one training round collects at a time; the next one takes over the requests that it left
running.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import StrEnum

from artifacts.new_tokens import News, split_news
from artifacts.records import Request, Running, WeightsRef, pack, unpack
from tasks.cluster.actors import ActorLost, Remote
from tasks.cluster.dask_cluster import pin_process
from tasks.engines.base import DRAIN_S, Attestation, Engine, EngineLost, EngineStats, Replica
from tasks.engines.registry import EngineConfig

GATHERING_S = 0.02  # least time between two answers to a client: a few decode steps


class EngineClient(StrEnum):
    """The kinds of client that submit requests to an engine."""

    ROUND = "round"  # the round that generates
    EVALUATION = "evaluation"


class ResponseMux:
    """Routes a replica's responses to the clients that submitted them, on one event loop."""

    def __init__(self, replica: Engine) -> None:
        self._replica = replica
        # the client of every response that has not come, by response id and attempt
        self._asker_of: dict[tuple[str, int], EngineClient] = {}
        self._boxes: dict[EngineClient, list[News]] = defaultdict(list)  # to be collected
        self._hearing: asyncio.Task[None] | None = None  # the one wait for the replica
        self._answered_s: dict[EngineClient, float] = {}  # when `collect` ended last, by the loop
        self._num_clearings = 0

    async def submit(self, asker: EngineClient, requests: Sequence[Request]) -> None:
        for request in requests:
            self._asker_of[request.response_id, request.attempt] = asker
        await self._replica.submit(requests)

    async def collect(self, asker: EngineClient, wait_s: float) -> list[News]:
        """Return this client's finished responses, and new tokens of its running ones. May return
        nothing before wait_s has passed, when only the other client's responses have come.

        What comes within `GATHERING_S` of the last answer is one answer, because each takes the
        Python of the engine's process from its decode steps for about a millisecond."""
        clock = asyncio.get_running_loop().time
        began = self._num_clearings
        await asyncio.sleep(self._answered_s.get(asker, -math.inf) + GATHERING_S - clock())
        if began != self._num_clearings:
            return []
        if not self._boxes[asker]:
            if self._hearing is None or self._hearing.done():
                self._hearing = asyncio.create_task(self._hear(wait_s))
            ended, _ = await asyncio.wait({self._hearing}, timeout=wait_s)
            for hearing in ended:
                hearing.result()
        self._answered_s[asker] = clock()
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
            self._num_clearings += 1
        return attestation


class EngineActor:
    """Holds one replica. All methods are coroutines, so that no call waits for another."""

    def __init__(
        self,
        config: EngineConfig,
        model_path: str,
        name: str,
        core_ids: tuple[int, ...],
        gpus: tuple[str, ...],
        seed: int,
        around: Callable[[Replica], Replica] | None = None,
    ) -> None:
        """core_ids, gpus: all cores and GPUs that a tensor-parallel replica holds together; without
        gpus, those that the worker sees. around: wraps the built replica; callers see the wrapper.
        The process must not have touched CUDA yet: CUDA reads the visible GPUs only once."""
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        built = config.build_engine(model_path, name, pin_process(core_ids), seed)
        self._engine = around(built) if around else built
        self._askers = ResponseMux(self._engine)

    async def ping(self) -> None:
        """Return if the engine answers; raises EngineLost when it has died in a live worker."""
        await self._engine.stats()

    async def submit(self, asker: EngineClient, payload: bytes) -> None:
        await self._askers.submit(asker, unpack(payload))

    async def collect(self, asker: EngineClient, wait_s: float) -> bytes:
        return pack(await self._askers.collect(asker, wait_s))

    async def abort(self, payload: bytes) -> None:
        await self._engine.abort(unpack(payload))

    async def load_weights(self, payload: bytes) -> bytes:
        weights, probes, running = unpack(payload)
        return pack(await self._askers.load_weights(weights, probes, running))

    async def stats(self) -> bytes:
        return pack(await self._engine.stats())

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def close(self) -> None:
        self._engine.close()


class RemoteEngine(Engine):
    """The Engine protocol over an actor in a Dask worker; a lost worker raises EngineLost."""

    def __init__(
        self, remote: Remote, deadline_s: float, asker: EngineClient = EngineClient.ROUND
    ) -> None:
        self.name = remote.name
        self._remote = remote
        self._deadline_s = deadline_s
        self._asker = asker

    @classmethod
    def connect(
        cls, run_id: str, name: str, deadline_s: float, asker: EngineClient = EngineClient.ROUND
    ) -> RemoteEngine:
        """Connect to the engine's current generation. Raises ActorLost if it is gone."""
        return cls(Remote.connect(run_id, name), deadline_s, asker)

    async def submit(self, requests: Sequence[Request]) -> None:
        await self._call("submit", self._asker, pack(tuple(requests)))

    async def collect(self, wait_s: float) -> list[News]:
        return list(unpack(await self._call("collect", self._asker, wait_s, extra_s=wait_s)))

    async def abort(self, response_ids: Sequence[str]) -> None:
        await self._call("abort", pack(tuple(response_ids)))

    async def load_weights(
        self,
        weights: WeightsRef,
        probes: Sequence[tuple[int, ...]],
        running: Running = Running.DROP,
    ) -> Attestation:
        payload = pack((weights, tuple(probes), running))
        extra_s = DRAIN_S if running is Running.DRAIN else 0.0
        attested: Attestation = unpack(await self._call("load_weights", payload, extra_s=extra_s))
        return attested

    async def stats(self) -> EngineStats:
        stats: EngineStats = unpack(await self._call("stats"))
        return stats

    async def sleep(self) -> None:
        """Release the GPU's memory until the next load or request, with sleep_mode."""
        await self._call("sleep")

    async def _call(self, method: str, *args: object, extra_s: float = 0.0) -> bytes:
        try:
            answer: bytes = await self._remote.call(
                method, *args, deadline_s=self._deadline_s + extra_s
            )
        except (ActorLost, TimeoutError) as error:
            raise EngineLost(str(error)) from error
        return answer
