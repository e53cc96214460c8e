"""The engines of elastic workers: built where an elastic worker is, given the weights, forgotten.

    recipe ─▶ actor in the elastic worker's process ─▶ pull ─▶ load_weights ─▶ gate

A build that fails is not tried again here, and concerns the elastic worker alone. Leaves out when
(`keeper`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from distributed import Client

from artifacts.records import Running, WeightsRef, unpack
from artifacts.reports.elastic_workers import DeniedRequest
from tasks.cluster.actors import ActorLost
from tasks.cluster.registry import ActorRegistry
from tasks.elastic.engine import recipe
from tasks.elastic.records import RunForWorkers
from tasks.elastic.weight_origin import RunWeightServer
from tasks.elastic.worker_events import AdmittedWorker
from tasks.elastic.worker_limits import MARGIN_S
from tasks.engines.base import EngineLost
from tasks.engines.remote import RemoteEngine
from tasks.learner.stage_reports import PublishReport
from tasks.learner.weight_check import check_weights

logger = logging.getLogger(__name__)

CLOSE_S = 10.0  # within which the weight server has closed

Result = TypeVar("Result")


class ElasticEngines:
    """By the name of the elastic worker. For the coroutines of one event loop."""

    def __init__(
        self, client: Client, run: RunForWorkers, origin: RunWeightServer | None = None
    ) -> None:
        """origin: from where elastic workers pull; None where they read the run's own paths."""
        self._client = client
        self._run = run
        self._origin = origin
        self._limits = run.elastic.limits
        self._registry = ActorRegistry(client, run.run_id, num_builds=1)
        # a build waits in a thread, and so does whoever forgets another meanwhile
        self._threads = ThreadPoolExecutor(
            2 * run.elastic.max_workers, thread_name_prefix="elastic"
        )

    @property
    def knocks(self) -> Sequence[DeniedRequest]:
        """Who asked for weights without a right, last first."""
        return () if self._origin is None else self._origin.knocks

    async def open(self) -> None:
        """Serve what elastic workers pull. ValueError where that cannot be."""
        if self._origin is not None:
            await self._origin.open()

    async def build(self, elastic_worker: AdmittedWorker) -> None:
        """Raises ActorLost when the worker dies of it, LimitMissed, or what the engine raises. The
        model's pull, which ends by itself in its own time, goes before."""
        origin = None if self._origin is None else await self._origin.offer_model()
        made = {
            elastic_worker.name: recipe(
                self._run, elastic_worker.name, elastic_worker.devices, origin
            )
        }
        on, limits = {elastic_worker.name: elastic_worker.worker}, self._limits
        within_s = limits.build_s + (limits.pull_s + MARGIN_S if origin is not None else 0.0)
        with limits.bound("build_s", f"{elastic_worker.name}: the engine's build"):
            await self._in_thread(lambda: self._registry.create_all(on, made, within_s))

    async def pull(self, name: str, weights: WeightsRef) -> WeightsRef:
        """Have this version where the elastic worker can read it; where that is. Raises ActorLost,
        LimitMissed, OSError when the file is gone, or what the elastic worker raises
        (WeightsRefused)."""
        if self._origin is None:
            return weights
        await self._origin.offer(weights)
        remote, version = self._registry.remote(name), str(weights.version)
        deadline_s = self._limits.pull_s + MARGIN_S
        with self._limits.bound("pull_s", f"{name}: the pull of version {version}"):
            packed = await remote.call("pull", version, deadline_s=deadline_s)
        here: WeightsRef = unpack(packed)
        return here

    async def load(self, name: str, published: PublishReport, running: Running) -> None:
        """Have the engine hold this version and pass the gate, as the run's own engines have.
        Raises EngineLost, LimitMissed, GateFailed, or what the engine raises."""
        engine, weights = self._engine(name, self._limits.load_s), published.weights
        with self._limits.bound("load_s", f"{name}: the load of version {weights.version}"):
            held = await engine.load_weights(weights, self._run.probes, running)
        if published.attested is not None:
            check_weights(name, held, published.attested, self._run.gate.tolerance_nats)

    async def is_empty(self, name: str) -> bool:
        """Whether it runs nothing; so it is when it is gone."""
        try:
            engine = self._engine(name, self._run.elastic.lease_s)
            return not (await engine.stats()).progress
        except (ActorLost, EngineLost):
            return True

    def _engine(self, name: str, deadline_s: float) -> RemoteEngine:
        return RemoteEngine(self._registry.remote(name), deadline_s)

    async def discard(self, name: str) -> None:
        """Forget it, built or not."""
        if self._origin is not None:
            self._origin.forget(name)
        await self._in_thread(lambda: self._registry.discard(name))

    def close(self) -> None:
        """Forget all, make no more, and serve nobody. Blocks for CLOSE_S at most; needs no loop
        that runs. Of a lost cluster there is nothing to forget."""
        if self._client.status == "running":
            with suppress(RuntimeError, OSError):
                self._registry.close()
        if self._origin is not None:
            with suppress(TimeoutError):
                self._threads.submit(asyncio.run, self._origin.close()).result(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
