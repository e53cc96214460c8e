"""Watches, builds, loads and ends the elastic workers of a run. It runs in the flow's process
beside the steps, which never wait for it.

    workers ── polls, leases, cards ──▶ one queue ─▶ WorkerAdmission ─▶ decisions
                                            ▲                              │
    a task for each: build ─▶ pull ─▶ load ─┴─ Loaded, Failed ◀────────────┤
    every publication ──▶ pull and load the newer version                  ▼
                                             sample buffer: joined, leaving, gone ─▶ rounds

Rounds are notified of an elastic worker with every version that it has loaded and that has passed
the weight check. Before a load that drops the engine's running requests the worker is withdrawn
from all rounds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace

from artifacts.records import Running
from tasks.cluster.actors import ActorLost
from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.config import LimitMissed
from tasks.elastic.engines import ElasticEngines
from tasks.elastic.worker_events import (
    AdmissionDecision,
    Admit,
    AdmittedWorker,
    Drain,
    Emptied,
    EndProcess,
    Failed,
    Forget,
    GivenUp,
    Join,
    Loaded,
    ReadCard,
    Took,
    WorkerEvent,
)
from tasks.elastic.workers import JoinedWorkers
from tasks.engines.base import EngineLost
from tasks.learner.reports import PublishReport
from tasks.rounds.elastic_engines import WorkerNotice

logger = logging.getLogger(__name__)

POLL_S = 1.0
EMPTY_POLLS = 2  # in a row, after which a leaving worker has handed over all that it ran
OVER = "the run is over"


class ElasticKeeper:
    """Looks after the elastic workers of one run. Used from one event loop."""

    def __init__(
        self,
        admission: WorkerAdmission,
        workers: JoinedWorkers,
        engines: ElasticEngines,
        notify: Callable[[WorkerNotice], Awaitable[None]],
        save_names: Callable[[], None] = lambda: None,
    ) -> None:
        """notify: sends a notice to the rounds through the sample buffer. save_names: writes the
        workers' names to the store, so that the next attempt at the run reuses none of them."""
        self._admission = admission
        self._workers, self._engines = workers, engines
        self._notify, self._save_names = notify, save_names
        self._events: asyncio.Queue[WorkerEvent] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[str, asyncio.Task[None]] = {}  # by worker
        self._offered: set[str] = set()  # workers that rounds may ask
        # publications are numbered from 1 on, as a version may be published again
        self._loaded: dict[str, int] = {}  # number of the one that each worker holds
        self._number = 0  # of the newest
        self._dropping = 0  # of the last whose load drops the running requests
        self._newest: tuple[PublishReport, Running] | None = None
        self._published = asyncio.Condition()
        self._notifying = asyncio.Lock()  # "joined" is sent before "gone"

    @property
    def workers(self) -> tuple[AdmittedWorker, ...]:
        """All workers that were admitted in this attempt at the run."""
        return self._admission.workers

    async def start(self) -> None:
        """Start to watch for elastic workers; does nothing if started already. Raises ValueError if
        the weight server cannot bind its address."""
        if self._tasks:
            return
        await self._engines.open()
        loop = asyncio.get_running_loop()
        self._workers.subscribe(lambda event: loop.call_soon_threadsafe(self._receive, event))
        self._spawn(self._watch())
        self._spawn(self._handle_events())

    def stop(self, *, is_over: bool) -> None:
        """Stop watching. is_over: dismiss the elastic workers, as the run is over. Otherwise the
        run may be resumed: they end with the scheduler, or the next attempt finds them."""
        for task in (*self._tasks, *self._serving.values()):
            task.cancel()
        if is_over:
            self._workers.dismiss_all([worker.address for worker in self._admission.here], OVER)
        self._workers.close()
        self._engines.close()

    async def publish(self, published: PublishReport, running: Running = Running.DROP) -> None:
        """Have elastic workers load the version that the run's engines hold now; does not wait for
        that. Before a load that drops running requests they are withdrawn from the rounds."""
        self._newest = published, running
        self._number += 1
        if running is Running.DROP:
            self._dropping = self._number  # from here on no worker joins with old weights
            async with self._notifying:
                for name in sorted(self._offered):
                    await self._withdraw(name, "it loads other weights")
        async with self._published:
            self._published.notify_all()

    # --- one queue, one loop -------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                await self._queue(self._workers.poll())
            except Exception:  # a scheduler that answers otherwise than expected: poll again
                logger.exception("elastic workers: not polled")
            await asyncio.sleep(POLL_S)

    async def _queue(self, call: Awaitable[WorkerEvent | None]) -> None:
        """Queue the event that a call of the workers returns, if any."""
        if (event := await call) is not None:
            self._events.put_nowait(event)

    def _receive(self, event: WorkerEvent) -> None:
        if isinstance(event, GivenUp):
            self._spawn(self._poll_then(event))
        else:
            self._events.put_nowait(event)

    async def _poll_then(self, event: WorkerEvent) -> None:
        """Queue an event after a poll: that a worker's process is away is the better reason."""
        await self._queue(self._workers.poll())
        self._events.put_nowait(event)

    async def _handle_events(self) -> None:
        while True:
            event = await self._events.get()
            try:
                decisions = self._admission.handle(event)
            except Exception:  # a worker may send an unexpected message
                logger.exception("elastic workers: not understood: %s", event)
                continue
            for decision in decisions:
                try:
                    await self._carry_out(decision)
                except Exception:  # a store that is away, say: the other elastic workers go on
                    logger.exception("elastic workers: not carried out: %s", decision)

    async def _carry_out(self, decision: AdmissionDecision) -> None:
        match decision:
            case ReadCard(address=address):
                self._spawn(self._queue(self._workers.read_card(address)))
            case Admit(worker=worker):
                logger.info("elastic_worker=%s admitted on %s", worker.name, worker.address)
                self._serving[worker.name] = asyncio.create_task(self._serve(worker))
                await asyncio.to_thread(self._save_names)  # last: the store may be away
            case EndProcess(how=how, address=address, reason=reason):
                level = logging.WARNING if how == "refuse" else logging.INFO
                logger.log(level, "worker=%s end=%s: %s", address, how, reason)
                self._spawn(self._workers.end(address, how, reason))
            case Join(worker=worker):
                await self._join(worker)
            case Drain(worker=worker):
                await self._drain(worker)
            case Forget(worker=worker):
                logger.warning("elastic_worker=%s gone: %s", worker.name, worker.reason)
                self._serving.pop(worker.name).cancel()
                async with self._notifying:
                    await self._withdraw(worker.name, worker.reason)
                self._spawn(self._engines.discard(worker.name))

    # --- a worker comes ------------------------------------------------------------------------

    async def _serve(self, worker: AdmittedWorker) -> None:
        """Build the worker's engine, then load the newest version, again after each publication."""
        try:
            begun_s = time.monotonic()
            await self._engines.build(worker)
            await self._follow(worker.name, time.monotonic() - begun_s)
        except Exception as error:  # whatever fails concerns this worker alone
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            missed = error.limit if isinstance(error, LimitMissed) else None
            failed = Failed(name=worker.name, reason=reason, missed=missed)
            if isinstance(error, ActorLost | EngineLost):  # a worker that is away has not failed
                await self._poll_then(failed)
            else:
                self._events.put_nowait(failed)

    async def _follow(self, name: str, build_s: float) -> None:
        """Load every published version, but those that are superseded during a load."""
        number = 0
        while True:
            async with self._published:
                while self._number <= number:
                    await self._published.wait()
            assert self._newest is not None, "there is one"
            published, running = self._newest
            # also if a publication that is skipped drops
            running = Running.DROP if number < self._dropping else running
            number = self._number
            begun_s = time.monotonic()
            try:
                weights = await self._engines.pull(name, published.weights)
                pulled_s = time.monotonic()
                await self._engines.load(name, replace(published, weights=weights), running)
            except Exception:
                if number == self._number:
                    raise
                continue  # its file may have made room for a newer one
            if number < self._dropping:
                continue
            self._loaded[name] = number
            pull_s, load_s = pulled_s - begun_s, time.monotonic() - pulled_s
            took = Took(build_s=build_s, pull_s=pull_s, load_s=load_s)
            version = published.weights.version
            self._events.put_nowait(Loaded(at_s=time.time(), name=name, version=version, took=took))

    async def _join(self, worker: AdmittedWorker) -> None:
        """Notify rounds that the worker has joined, unless its next load will drop its requests."""
        assert worker.version is not None, "it has loaded one"
        name, version, took = worker.name, worker.version, worker.took
        async with self._notifying:
            if self._loaded[name] < self._dropping:
                return
            words = "elastic_worker=%s joined version=%d build_s=%.1f pull_s=%.2f load_s=%.2f"
            logger.info(words, name, version, took.build_s, took.pull_s, took.load_s)
            self._offered.add(name)
            devices = worker.timeline_devices
            joined = WorkerNotice(name=name, kind="joined", version=version, devices=devices)
            await self._try_to_notify(joined)

    # --- a worker goes -------------------------------------------------------------------------

    async def _drain(self, worker: AdmittedWorker) -> None:
        name = worker.name
        logger.info("elastic_worker=%s leaves: %s", name, worker.reason)
        self._offered.discard(name)
        await self._try_to_notify(WorkerNotice(name=name, kind="leaving", reason=worker.reason))
        self._serving.pop(name).cancel()
        self._serving[name] = asyncio.create_task(self._wait_until_empty(name))

    async def _wait_until_empty(self, name: str) -> None:
        num_empty = 0
        while num_empty < EMPTY_POLLS:
            await asyncio.sleep(POLL_S)
            num_empty = num_empty + 1 if await self._engines.is_empty(name) else 0
        self._events.put_nowait(Emptied(name=name))

    async def _withdraw(self, name: str, reason: str) -> None:
        self._offered.discard(name)
        await self._try_to_notify(WorkerNotice(name=name, kind="gone", reason=reason))

    async def _try_to_notify(self, notice: WorkerNotice) -> None:
        """Send a notice to the rounds. If the sample buffer is lost, there is no round; once it is
        created again, the weights are published and their workers announced again."""
        try:
            await self._notify(notice)
        except (ActorLost, TimeoutError) as error:
            name, kind = notice.name, notice.kind
            logger.warning("elastic_worker=%s kind=%s not notified: %s", name, kind, error)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("elastic workers are not looked after: %s", task.exception())
