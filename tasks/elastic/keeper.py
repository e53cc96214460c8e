"""Looks after the elastic workers of a run, in the flow's process beside the steps, which never
wait for it.

    workers ── look, leases, cards ──▶ one queue ─▶ Membership ─▶ decisions
                                          ▲                          │
    a task for each elastic worker: build ─▶ pull ─▶ load ─┴─ Loaded, Failed ◀┤
    every publication ──▶ pull and load the newer version            ▼
                                             sample buffer: joined, leaving, gone ─▶ rounds

An elastic worker is told to rounds when it holds a version and has passed the gate, and again with
every later one: a round asks it for what its weights are new enough for. Before a load that drops
what an engine runs, no round may ask it: it is withdrawn first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace

from artifacts.records import Running
from artifacts.reports.elastic_workers import DeniedRequest
from tasks.cluster.actors import ActorLost
from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.engine import shown_devices
from tasks.elastic.protocols import ElasticEngineOps, WorkerSource
from tasks.elastic.publications import ElasticPublications
from tasks.elastic.records import WorkerNotice
from tasks.elastic.worker_events import (
    Admit,
    AdmittedWorker,
    AskCard,
    Dismiss,
    Drain,
    Emptied,
    Failed,
    Forget,
    GivenUp,
    Join,
    Loaded,
    MemberDecision,
    Refuse,
    Renew,
    Took,
    WorkerEvent,
)
from tasks.elastic.worker_limits import LimitMissed
from tasks.engines.base import EngineLost
from tasks.learner.stage_reports import PublishReport

logger = logging.getLogger(__name__)

LOOK_S = 1.0
EMPTY_LOOKS = (
    2  # in a row, after which an elastic worker that leaves has handed over all that it ran
)
OVER = "the run is over"


class ElasticKeeper:
    """Of one run. For the coroutines of one event loop."""

    def __init__(
        self,
        membership: WorkerAdmission,
        workers: WorkerSource,
        engines: ElasticEngineOps,
        tell: Callable[[WorkerNotice], Awaitable[None]],
        keep_names: Callable[[], None] = lambda: None,
    ) -> None:
        """tell: the rounds, by way of the sample buffer. keep_names: where the next attempt at the
        run finds them, so that it gives none again."""
        self._membership = membership
        self._workers, self._engines = workers, engines
        self._tell, self._keep_names = tell, keep_names
        self._events: asyncio.Queue[WorkerEvent] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[str, asyncio.Task[None]] = {}  # by elastic worker
        self._told: set[str] = set()  # elastic workers that rounds may ask
        self._loaded: dict[
            str, int
        ] = {}  # publication that each elastic worker holds, by elastic worker
        self._publications = ElasticPublications()
        self._telling = asyncio.Lock()  # that it joined is told before that it goes

    @property
    def elastic_workers(self) -> tuple[AdmittedWorker, ...]:
        """All that came in this attempt at the run."""
        return self._membership.elastic_workers

    @property
    def knocks(self) -> tuple[DeniedRequest, ...]:
        """Who asked for weights without a right, in this attempt at the run."""
        return tuple(self._engines.knocks)

    async def start(self) -> None:
        """Look after elastic workers from now on; harmless when it does already. ValueError where
        weights cannot be served."""
        if self._tasks:
            return
        await self._engines.open()
        loop = asyncio.get_running_loop()

        def hear(event: WorkerEvent) -> None:
            loop.call_soon_threadsafe(self._hear, event)

        self._workers.listen(hear)
        self._spawn(self._watch())
        self._spawn(self._keep())

    def stop(self, *, is_over: bool) -> None:
        """Look after nobody any more. Elastic workers of a run that is over are dismissed; those of
        one that may be resumed end with the scheduler, or are found by the next attempt."""
        for task in (*self._tasks, *self._serving.values()):
            task.cancel()
        if is_over:
            self._workers.part(
                [elastic_worker.address for elastic_worker in self._membership.here], OVER
            )
        self._workers.close()
        self._engines.close()

    async def publish(self, published: PublishReport, running: Running = Running.DROP) -> None:
        """The run's engines hold this version now. Returns before the elastic workers do, but not
        before rounds that open later know of none that holds another."""
        self._publications.put(published, running)  # from here on nobody joins with what it drops
        if running is Running.DROP:
            async with self._telling:
                for name in sorted(self._told):
                    await self._withdraw(name, "it loads other weights")
        await self._publications.wake()

    # --- one queue, one loop -------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # a scheduler that answers otherwise than expected: look again
                logger.exception("elastic workers: not looked at")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        looked = await self._workers.look()
        if looked is not None:
            self._events.put_nowait(looked)

    def _hear(self, event: WorkerEvent) -> None:
        if isinstance(event, GivenUp):
            self._spawn(self._look_and(event))
        else:
            self._events.put_nowait(event)

    async def _look_and(self, event: WorkerEvent) -> None:
        """Say this of an elastic worker, but first whether its worker is away, which says more."""
        await self._look()
        self._events.put_nowait(event)

    async def _keep(self) -> None:
        while True:
            event = await self._events.get()
            try:
                decisions = self._membership.handle(event)
            except Exception:  # a worker may say what nobody expects
                logger.exception("elastic workers: not understood: %s", event)
                continue
            for decision in decisions:
                try:
                    await self._carry_out(decision)
                except Exception:  # a store that is away, say: the other elastic workers go on
                    logger.exception("elastic workers: not carried out: %s", decision)

    async def _carry_out(self, decision: MemberDecision) -> None:
        match decision:
            case AskCard(address=address):
                self._spawn(self._ask(address))
            case Admit(elastic_worker=elastic_worker):
                logger.info(
                    "elastic_worker=%s admitted on %s", elastic_worker.name, elastic_worker.address
                )
                self._serving[elastic_worker.name] = asyncio.create_task(
                    self._serve(elastic_worker)
                )
                await asyncio.to_thread(self._keep_names)  # last: the store may be away
            case Refuse(address=address, reason=reason):
                logger.warning("worker=%s refused: %s", address, reason)
                self._spawn(self._workers.refuse(address, reason))
            case Dismiss(address=address, reason=reason):
                logger.info("worker=%s dismissed: %s", address, reason)
                self._spawn(self._workers.dismiss(address, reason))
            case Renew(address=address, reason=reason):
                logger.info("worker=%s must begin anew: %s", address, reason)
                self._spawn(self._workers.renew(address, reason))
            case Join(elastic_worker=elastic_worker):
                await self._join(elastic_worker)
            case Drain(elastic_worker=elastic_worker):
                await self._drain(elastic_worker)
            case Forget(elastic_worker=elastic_worker):
                await self._forget(elastic_worker)

    async def _ask(self, address: str) -> None:
        self._events.put_nowait(await self._workers.ask(address))

    # --- an elastic worker comes
    # -------------------------------------------------------------------------

    async def _serve(self, elastic_worker: AdmittedWorker) -> None:
        """Build its engine, and have it hold whatever is the newest version."""
        try:
            begun_s = time.monotonic()
            await self._engines.build(elastic_worker)
            await self._follow(elastic_worker.name, time.monotonic() - begun_s)
        except Exception as error:  # whatever fails concerns this elastic worker alone
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            missed = error.limit if isinstance(error, LimitMissed) else None
            failed = Failed(elastic_worker=elastic_worker.name, reason=reason, missed=missed)
            if isinstance(error, ActorLost | EngineLost):  # for a worker that is away is no failure
                await self._look_and(failed)
            else:
                self._events.put_nowait(failed)

    async def _follow(self, name: str, build_s: float) -> None:
        """Have every version from now on, or the newest of those that come meanwhile."""
        number = 0
        while True:
            number, published, running = await self._publications.newer_than(number)
            begun_s = time.monotonic()
            try:
                weights = await self._engines.pull(name, published.weights)
                pulled_s = time.monotonic()
                await self._engines.load(name, replace(published, weights=weights), running)
            except Exception:
                if number == self._publications.number:
                    raise
                continue  # its file may have made room for a newer one
            if number >= self._publications.dropping:
                self._loaded[name] = number
                took = Took(
                    build_s=build_s,
                    pull_s=pulled_s - begun_s,
                    load_s=time.monotonic() - pulled_s,
                )
                self._events.put_nowait(
                    Loaded(
                        at_s=time.time(),
                        elastic_worker=name,
                        version=published.weights.version,
                        took=took,
                    )
                )

    async def _join(self, elastic_worker: AdmittedWorker) -> None:
        """Tell rounds, unless it drops what it is asked for newer weights."""
        assert elastic_worker.version is not None, "it has loaded one"
        devices = shown_devices(elastic_worker.worker, elastic_worker.devices)
        told = WorkerNotice(
            name=elastic_worker.name, kind="joined", version=elastic_worker.version, devices=devices
        )
        took = elastic_worker.took
        async with self._telling:
            if self._loaded[elastic_worker.name] < self._publications.dropping:
                return
            logger.info(
                "elastic_worker=%s joined version=%d build_s=%.1f pull_s=%.2f load_s=%.2f",
                *(
                    elastic_worker.name,
                    elastic_worker.version,
                    took.build_s,
                    took.pull_s,
                    took.load_s,
                ),
            )
            self._told.add(elastic_worker.name)
            await self._try_to_tell(told)

    # --- an elastic worker goes
    # --------------------------------------------------------------------------

    async def _drain(self, elastic_worker: AdmittedWorker) -> None:
        logger.info("elastic_worker=%s leaves: %s", elastic_worker.name, elastic_worker.reason)
        self._told.discard(elastic_worker.name)
        await self._try_to_tell(
            WorkerNotice(name=elastic_worker.name, kind="leaving", reason=elastic_worker.reason)
        )
        self._serving.pop(elastic_worker.name).cancel()
        self._serving[elastic_worker.name] = asyncio.create_task(self._empty(elastic_worker.name))

    async def _empty(self, name: str) -> None:
        """Look until it runs nothing any more."""
        num_empty = 0
        while num_empty < EMPTY_LOOKS:
            await asyncio.sleep(LOOK_S)
            num_empty = num_empty + 1 if await self._engines.is_empty(name) else 0
        self._events.put_nowait(Emptied(elastic_worker=name))

    async def _forget(self, elastic_worker: AdmittedWorker) -> None:
        logger.warning("elastic_worker=%s gone: %s", elastic_worker.name, elastic_worker.reason)
        self._serving.pop(elastic_worker.name).cancel()
        async with self._telling:
            await self._withdraw(elastic_worker.name, elastic_worker.reason)
        self._spawn(self._engines.discard(elastic_worker.name))

    async def _withdraw(self, name: str, reason: str) -> None:
        self._told.discard(name)
        await self._try_to_tell(WorkerNotice(name=name, kind="gone", reason=reason))

    async def _try_to_tell(self, told: WorkerNotice) -> None:
        """Without a buffer there is no round; after it is made anew the weights are published, and
        whoever has them is told again."""
        try:
            await self._tell(told)
        except (ActorLost, TimeoutError) as error:
            logger.warning("elastic_worker=%s kind=%s not told: %s", told.name, told.kind, error)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("elastic workers are not looked after: %s", task.exception())
