"""Spot workers of a trace, as rounds on a virtual clock see them.

    trace ─▶ +1: builds ─▶ has the weights ─▶ EngineJoined ─▶ requests ─▶ ... next version, again
          └▶ -1: EngineLeaving ─▶ notice ─▶ EngineGone: the oldest worker, whatever it does

A worker is paid for from its start to its end, built or not. Leaves out who plays the rounds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from artifacts.records import WeightsRef
from artifacts.reports.device_cost import Held
from research.spot.elastic_shapes import SpotShape
from research.spot.spot_traces import Trace
from tasks.engines.mailbox import Mailbox
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.rounds.elastic_engines import ElasticNews, EngineGone, EngineJoined, EngineLeaving

SPOT = "spot"
MOST_WORKERS = 99  # unless a run holds fewer


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """One worker from its start to its end."""

    engine: SimulatedEngine
    devices: tuple[str, ...]
    started_s: float
    is_built: bool = False
    version: int | None = None  # the weights that it has
    ended_s: float | None = None
    getting_ready: asyncio.Task[None] | None = None


class SpotWorkers:
    """The workers that are present; reports changes to the open round (`ElasticWorkers`)."""

    def __init__(
        self,
        shape: SpotShape,
        trace: Trace,
        *,
        seed: int,
        notice_s: float,
    ) -> None:
        """Workers of time 0 are built by then."""
        self.num_changes = 0  # since the beginning
        self._shape, self._trace, self._seed = shape, trace, seed
        self._notice_s = notice_s
        self._most = MOST_WORKERS  # that are held at a time, whatever the trace offers
        self.num_offered = 0  # by the trace
        self._present: list[Worker] = []  # the oldest first
        self._ever: list[Worker] = []
        self._version = 0
        self._news: Mailbox[ElasticNews] | None = None

    @property
    def num_ready(self) -> int:
        """Workers that are built."""
        return sum(worker.is_built for worker in self._present)

    async def follow(self) -> None:
        """Workers come and go as the trace has it."""
        for change in self._trace:
            await asyncio.sleep(change.time_s - self._now())
            for _ in range(abs(change.change)):
                self.num_offered = max(0, self.num_offered + (1 if change.change > 0 else -1))
                if change.change < 0 and self._present:
                    self._take_away(self._present[0])
                self._fill()

    def hold_at_most(self, most: int) -> None:
        """Hold no more workers than this from now on; those that are present may stay."""
        self._most = most
        self._fill()

    async def news(self, wait_s: float) -> list[ElasticNews]:
        """News for the open round (`ElasticWorkers`)."""
        assert self._news is not None, "a round is open"
        return await self._news.take(wait_s)

    async def give_up(self, name: str, reason: str) -> None:
        """Nothing to do: workers that died were reported, and one that lives has answered."""

    def open_round(self) -> None:
        """Begin a round, and report to it the workers that have its weights."""
        self._news = Mailbox()
        for worker in self._present:
            self._report_joined(worker)

    def close_round(self) -> None:
        self._news = None

    def publish(self, version: int) -> None:
        """Have every built worker take this version over, beside the next step."""
        self._version = version
        for worker in self._present:
            if worker.is_built:
                self._begin(worker, self._pull(worker))

    def held(self, until_s: float) -> list[Held]:
        """The paid seconds of every device up to now."""
        return [
            Held(
                device=device,
                price_class=SPOT,
                start_s=worker.started_s,
                end_s=until_s if worker.ended_s is None else worker.ended_s,
            )
            for worker in self._ever
            for device in worker.devices
        ]

    def close(self) -> None:
        for worker in self._present:
            self._stop(worker)

    def _fill(self) -> None:
        while len(self._present) < min(self.num_offered, self._most):
            self.num_changes += 1
            name = f"spot-{len(self._ever)}"
            worker = Worker(
                engine=self._shape.replica(name, self._seed),
                devices=tuple(f"{name}:{gpu}" for gpu in range(self._shape.gpus)),
                started_s=self._now(),
            )
            self._present.append(worker)
            self._ever.append(worker)
            build_s = self._shape.build_s if self._now() else 0.0
            self._begin(worker, self._build(worker, build_s))

    async def _build(self, worker: Worker, build_s: float) -> None:
        await asyncio.sleep(build_s)
        worker.is_built = True
        self.num_changes += 1
        await self._pull(worker)

    async def _pull(self, worker: Worker) -> None:
        version = self._version
        await asyncio.sleep(self._shape.transfer_s)
        await worker.engine.load_weights(WeightsRef(version=version, path="", digest=""), probes=())
        worker.version = version
        self._report_joined(worker)

    def _report_joined(self, worker: Worker) -> None:
        if self._news is not None and worker.version == self._version:
            joined = EngineJoined(
                engine=worker.engine,
                devices=worker.devices,
                version=self._version,
                max_running=self._shape.engine(self._seed).max_batch,
            )
            self._news.put(joined)

    def _take_away(self, worker: Worker) -> None:
        """With notice it still answers for a while; without, it does not."""
        self.num_changes += 1
        self._present.remove(worker)
        worker.ended_s = self._now() + self._notice_s
        if self._notice_s:
            self._report(EngineLeaving(name=worker.engine.name))
        asyncio.get_running_loop().call_at(worker.ended_s, self._stop, worker)

    def _stop(self, worker: Worker) -> None:
        if worker.getting_ready is not None:
            worker.getting_ready.cancel()
        worker.engine.fail()
        self._report(EngineGone(name=worker.engine.name, reason="its machine was taken away"))

    def _report(self, news: ElasticNews) -> None:
        if self._news is not None:
            self._news.put(news)

    def _begin(self, worker: Worker, work: object) -> None:
        if worker.getting_ready is not None:
            worker.getting_ready.cancel()
        assert asyncio.iscoroutine(work)
        worker.getting_ready = asyncio.create_task(work)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
