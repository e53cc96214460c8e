"""Builds engines in the processes of elastic workers, loads weights into them, discards them.

A build that fails is not tried again here, and concerns its elastic worker alone. The learner
overwrites the oldest kept version and renames its file first. The server then finds that file gone,
a receiver finds wrong bytes, and the worker pulls the newer version. Leaves out when engines are
built and loaded (`keeper`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from distributed import Client, get_worker

from artifacts.records import Running, ShownPicture, WeightsRef, pack, unpack
from tasks.cluster.actors import ActorLost
from tasks.cluster.registry import ActorRegistry, Recipe
from tasks.elastic.config import MARGIN_S, ElasticConfig
from tasks.elastic.weights.pulls import WeightOrigin, WeightPulls
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.weights.transfer import WeightsRefused
from tasks.elastic.worker_card import mark_served
from tasks.elastic.worker_events import AdmittedWorker
from tasks.engines.base import EngineLost, pictures_of
from tasks.engines.registry import EngineConfig
from tasks.engines.remote import EngineActor, EngineClient, RemoteEngine
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
    """An engine in an elastic worker's process, which no other run admits afterwards."""

    def __init__(
        self,
        config: EngineConfig,
        model: str | WeightOrigin,
        name: str,
        core_ids: tuple[int, ...],
        seed: int,
    ) -> None:
        """model: path of the model where the run has it, or the server to pull that and all
        versions from. Then blocks until the model is pulled, and raises LimitMissed, or as
        `weights.client.fetch`."""
        mark_served(name)  # before the pull: the next run must find the mark
        self._pulls_pictures = bool(config.pictures) and isinstance(model, WeightOrigin)
        self._arriving = asyncio.Lock()  # no call overtakes one whose pictures are on their way
        if isinstance(model, WeightOrigin):
            self._pulls = WeightPulls(model, name, get_worker())
            model = self._pulls.model()
        if self._pulls_pictures:
            pulled = {"pictures": str(self._pulls.pictures.folder)}
            config = config.model_copy(update=pulled)
        super().__init__(config, model, name, core_ids, (), seed)

    async def pull(self, version: str) -> bytes:
        """Pull this version; returns its WeightsRef on this machine, packed."""
        return pack(await self._pulls.pull(version))

    async def submit(self, asker: EngineClient, payload: bytes) -> None:
        async with self._arriving:
            if self._pulls_pictures:
                await self._pull_pictures(request.pictures for request in unpack(payload))
            await super().submit(asker, payload)

    async def abort(self, payload: bytes) -> None:
        async with self._arriving:
            await super().abort(payload)

    async def load_weights(self, payload: bytes) -> bytes:
        if self._pulls_pictures:
            _, probes, _ = unpack(payload)
            async with self._arriving:
                await self._pull_pictures(map(pictures_of, probes))
        return await super().load_weights(payload)

    async def _pull_pictures(self, shown: Iterable[Sequence[ShownPicture]]) -> None:
        """Raises EngineLost if a picture cannot be had: other engines can have the requests."""
        contents = [picture.content for pictures in shown for picture in pictures]
        try:
            await self._pulls.pull_pictures(contents)
        except (WeightsRefused, OSError) as error:
            raise EngineLost(str(error)) from error


def recipe(
    run: RunForWorkers, name: str, devices: Sequence[str], origin: WeightOrigin | None = None
) -> Recipe:
    """Recipe of one engine over all GPUs among these devices, or over all of these cores if there
    is no GPU. origin: server to pull weights from; None to read the run's own paths."""
    gpus = [device for device in devices if device.startswith("cuda:")]
    cores = () if gpus else tuple(range(len(devices)))
    config = run.engine.model_copy(update={"tensor_parallel_size": max(1, len(gpus))})
    return ElasticEngineActor, (config, origin or run.model_path, name, cores, run.seed)


class ElasticEngines:
    """Engines by the name of their elastic worker. Used from one event loop."""

    def __init__(
        self, client: Client, run: RunForWorkers, server: WeightServer | None = None
    ) -> None:
        """server: elastic workers pull weights from it; None if they read the run's own paths."""
        self._client, self._run, self._server = client, run, server
        self._config = run.elastic
        self._registry = ActorRegistry(client, run.run_id, num_builds=1)
        # a build blocks its thread, and so does the discard of another engine meanwhile
        self._threads = ThreadPoolExecutor(
            2 * run.elastic.max_workers, thread_name_prefix="elastic"
        )

    async def open(self) -> None:
        """Start the weight server, if there is one; does nothing if it runs. Raises ValueError if
        its address is taken or not this machine's."""
        if self._server is None:
            return
        try:
            await self._server.start()
        except OSError as error:
            await self._server.close()
            config = self._server.config
            raise ValueError(
                "elastic.weights.host and port must be free on this machine, got"
                f" {', '.join(config.addresses)} and {config.port} ({error}); correct them"
            ) from error

    async def build(self, worker: AdmittedWorker) -> None:
        """Pull the model if the worker needs it, and build the worker's engine. Raises ActorLost if
        the worker dies meanwhile, LimitMissed, or any error of the engine."""
        name, config, server = worker.name, self._config, self._server
        origin, within_s = None, config.build_s
        if server is not None:
            await server.publish_model(Path(self._run.model_path))
            origin = WeightOrigin(urls=server.urls, config=config)
            within_s += config.pull_s + MARGIN_S
        recipes = {name: recipe(self._run, name, worker.devices, origin)}
        with config.bound("build_s", f"{name}: the engine's build"):
            await self._in_thread(
                lambda: self._registry.create_all({name: worker.dask_name}, recipes, within_s)
            )

    async def pull(self, name: str, weights: WeightsRef) -> WeightsRef:
        """Bring this version to the elastic worker; returns its reference there. Raises ActorLost,
        LimitMissed, WeightsRefused, or OSError if the file is gone."""
        if self._server is None:
            return weights
        await self._server.publish(weights)
        remote, version = self._registry.remote(name), str(weights.version)
        deadline_s = self._config.pull_s + MARGIN_S
        with self._config.bound("pull_s", f"{name}: the pull of version {version}"):
            packed = await remote.call("pull", version, deadline_s=deadline_s)
        here: WeightsRef = unpack(packed)
        return here

    async def load(self, name: str, published: PublishReport, running: Running) -> None:
        """Load this version into the engine, with the same weight check as the run's own engines.
        Raises EngineLost, LimitMissed, WeightCheckFailed, or any error of the engine."""
        engine, weights = self._engine(name, self._config.load_s), published.weights
        with self._config.bound("load_s", f"{name}: the load of version {weights.version}"):
            held = await engine.load_weights(weights, self._run.probes, running)
        if published.attested is not None:
            check_weights(name, held, published.attested, self._run.gate.tolerance_nats)

    async def is_empty(self, name: str) -> bool:
        """True if the engine runs no request, or is gone."""
        try:
            engine = self._engine(name, self._config.lease_s)
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
        """Discard all engines, build no more, and stop the weight server within CLOSE_S; works
        without a running event loop."""
        if self._client.status == "running":
            with suppress(RuntimeError, OSError):
                self._registry.close()
        if self._server is not None:
            with suppress(TimeoutError):
                self._threads.submit(asyncio.run, self._server.close()).result(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
