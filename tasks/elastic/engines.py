"""Builds engines in the processes of elastic workers, loads weights into them, discards them.

    recipe ─▶ ElasticEngineActor: reads the model where the run has it ────────┐
         └──▶ PullingEngineActor: pulls the model, and versions before a load ─┤
                                                        load_weights ─▶ weight check

    RunWeightServer: hashes a version once, when a worker needs it; serves it from its own path

A build that fails is not tried again here, and concerns its elastic worker alone. The learner
overwrites the oldest kept version and renames its file first. The server then finds that file gone,
a receiver finds wrong bytes, and the worker pulls the newer version. Leaves out when engines are
built and loaded (`keeper`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from distributed import Client, get_worker

from artifacts.records import Running, WeightsRef, pack, unpack
from artifacts.reports.elastic_workers import DeniedRequest
from tasks.cluster.actors import ActorLost
from tasks.cluster.registry import ActorRegistry, Recipe
from tasks.elastic.config import MARGIN_S, ElasticConfig, Limits, WeightServerConfig
from tasks.elastic.weights.pulls import WeightOrigin, WeightPulls
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.worker_card import mark_served
from tasks.elastic.worker_events import AdmittedWorker
from tasks.engines.base import EngineLost
from tasks.engines.registry import EngineConfig
from tasks.engines.remote import EngineActor, RemoteEngine
from tasks.learner.reports import PublishReport
from tasks.learner.weight_check import WeightCheckConfig, check_weights

CLOSE_S = 10.0  # within which the weight server has closed

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForWorkers:
    """Settings of a run that its elastic workers' engines are built and checked with."""

    run_id: str  # its folder under the artifact root
    model_path: str  # where the run has the model
    engine: EngineConfig  # the rollout engines
    seed: int
    gate: WeightCheckConfig  # the comparison after every load
    probes: tuple[tuple[int, ...], ...]  # prompts of the weight check; empty switches it off
    elastic: ElasticConfig  # time limits, and how many elastic workers there may be


class ElasticEngineActor(EngineActor):
    """An engine in an elastic worker's process. The process is marked as used, so that the next run
    does not admit it."""

    def __init__(
        self,
        config: EngineConfig,
        model_path: str,
        name: str,
        core_ids: tuple[int, ...],
        seed: int,
    ) -> None:
        mark_served(name)
        super().__init__(config, model_path, name, core_ids, (), seed)


class PullingEngineActor(ElasticEngineActor):
    """An engine that gets all files of the run over the network."""

    def __init__(
        self,
        config: EngineConfig,
        origin: WeightOrigin,
        name: str,
        core_ids: tuple[int, ...],
        seed: int,
    ) -> None:
        """Blocks until the model is pulled. Raises LimitMissed, or as `weights.client.fetch`."""
        mark_served(name)  # before the pull: the next run must find the mark
        self._pulls = WeightPulls(origin, name, get_worker())
        super().__init__(config, self._pulls.model(), name, core_ids, seed)

    async def pull(self, version: str) -> bytes:
        """Pull this version; returns its WeightsRef on this machine, packed."""
        return pack(await self._pulls.pull(version))


def recipe(
    run: RunForWorkers, name: str, devices: Sequence[str], origin: WeightOrigin | None = None
) -> Recipe:
    """Recipe of one engine over all GPUs among these devices, or over all of these cores if there
    is no GPU. origin: server to pull weights from; None to read the run's own paths."""
    gpus = [device for device in devices if device.startswith("cuda:")]
    cores = () if gpus else tuple(range(len(devices)))
    config = run.engine.model_copy(update={"tensor_parallel_size": max(1, len(gpus))})
    if origin is not None:
        return PullingEngineActor, (config, origin, name, cores, run.seed)
    return ElasticEngineActor, (config, run.model_path, name, cores, run.seed)


class RunWeightServer:
    """The weight server of one run, in the flow's process. Used from one event loop."""

    def __init__(self, config: WeightServerConfig, token: str, model: Path, limits: Limits) -> None:
        """token: the run's secret. model: folder of the model that the run starts from."""
        self._config, self._model, self._limits = config, model, limits
        self._server = WeightServer(config, token)
        self._offering = asyncio.Lock()
        self._has_model = False
        self._offered: WeightsRef | None = None

    @property
    def denied_requests(self) -> Sequence[DeniedRequest]:
        """Unauthorised weight requests, newest first."""
        return self._server.denied_requests

    async def open(self) -> None:
        """Start the server; does nothing if it runs. Raises ValueError if the address is taken or
        not this machine's."""
        if self._server.url:
            return
        try:
            await self._server.start()
        except OSError as error:
            await self._server.close()
            raise ValueError(
                "elastic.weights.host and port must be free on this machine, got"
                f" {self._config.host} and {self._config.port} ({error}); correct them"
            ) from error

    async def close(self) -> None:
        """Stop the server."""
        await self._server.close()

    async def offer_model(self) -> WeightOrigin:
        """Serve the model's folder; returns the address and settings that elastic workers pull
        with."""
        async with self._offering:
            if not self._has_model:
                await self._server.publish_model(self._model)
                self._has_model = True
        return WeightOrigin(
            url=self._server.url,
            allowed_senders=self._config.allowed_senders,
            deltas=self._config.deltas,
            limits=self._limits,
        )

    async def offer(self, weights: WeightsRef) -> None:
        """Serve this version and the one before it. Raises OSError if the version's file is
        gone."""
        async with self._offering:
            if weights != self._offered:
                await self._server.publish(weights)
                self._offered = weights

    def forget(self, worker: str) -> None:
        """Stop naming this elastic worker as a source of weights: it is gone."""
        self._server.forget(worker)


class ElasticEngines:
    """Engines by the name of their elastic worker. Used from one event loop."""

    def __init__(
        self, client: Client, run: RunForWorkers, server: RunWeightServer | None = None
    ) -> None:
        """server: elastic workers pull weights from it; None if they read the run's own paths."""
        self._client, self._run, self._server = client, run, server
        self._limits = run.elastic.limits
        self._registry = ActorRegistry(client, run.run_id, num_builds=1)
        # a build blocks its thread, and so does the discard of another engine meanwhile
        self._threads = ThreadPoolExecutor(
            2 * run.elastic.max_workers, thread_name_prefix="elastic"
        )

    @property
    def denied_requests(self) -> Sequence[DeniedRequest]:
        """Unauthorised weight requests, newest first."""
        return () if self._server is None else self._server.denied_requests

    async def open(self) -> None:
        """Start the weight server, if there is one. Raises ValueError for an unusable address."""
        if self._server is not None:
            await self._server.open()

    async def build(self, worker: AdmittedWorker) -> None:
        """Pull the model if the worker needs it, and build the worker's engine. Raises ActorLost if
        the worker dies meanwhile, LimitMissed, or any error of the engine."""
        name, limits = worker.name, self._limits
        origin = None if self._server is None else await self._server.offer_model()
        recipes = {name: recipe(self._run, name, worker.devices, origin)}
        within_s = limits.build_s + (limits.pull_s + MARGIN_S if origin is not None else 0.0)
        with limits.bound("build_s", f"{name}: the engine's build"):
            await self._in_thread(
                lambda: self._registry.create_all({name: worker.dask_name}, recipes, within_s)
            )

    async def pull(self, name: str, weights: WeightsRef) -> WeightsRef:
        """Bring this version to the elastic worker; returns the reference that the worker reads.
        Raises ActorLost, LimitMissed, OSError if the file is gone, or an error of the elastic
        worker (WeightsRefused)."""
        if self._server is None:
            return weights
        await self._server.offer(weights)
        remote, version = self._registry.remote(name), str(weights.version)
        deadline_s = self._limits.pull_s + MARGIN_S
        with self._limits.bound("pull_s", f"{name}: the pull of version {version}"):
            packed = await remote.call("pull", version, deadline_s=deadline_s)
        here: WeightsRef = unpack(packed)
        return here

    async def load(self, name: str, published: PublishReport, running: Running) -> None:
        """Load this version into the engine, with the same weight check as the run's own engines.
        Raises EngineLost, LimitMissed, WeightCheckFailed, or any error of the engine."""
        engine, weights = self._engine(name, self._limits.load_s), published.weights
        with self._limits.bound("load_s", f"{name}: the load of version {weights.version}"):
            held = await engine.load_weights(weights, self._run.probes, running)
        if published.attested is not None:
            check_weights(name, held, published.attested, self._run.gate.tolerance_nats)

    async def is_empty(self, name: str) -> bool:
        """True if the engine runs no request, or is gone."""
        try:
            engine = self._engine(name, self._run.elastic.lease_s)
            return not (await engine.stats()).progress
        except (ActorLost, EngineLost):
            return True

    def _engine(self, name: str, deadline_s: float) -> RemoteEngine:
        return RemoteEngine(self._registry.remote(name), deadline_s)

    async def discard(self, name: str) -> None:
        """Discard the engine of this worker, built or not."""
        if self._server is not None:
            self._server.forget(name)
        await self._in_thread(lambda: self._registry.discard(name))

    def close(self) -> None:
        """Discard all engines, build no more, and stop the weight server. Waits for the server for
        at most CLOSE_S; works without a running event loop. A lost cluster has no engines left to
        discard."""
        if self._client.status == "running":
            with suppress(RuntimeError, OSError):
                self._registry.close()
        if self._server is not None:
            with suppress(TimeoutError):
                self._threads.submit(asyncio.run, self._server.close()).result(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
