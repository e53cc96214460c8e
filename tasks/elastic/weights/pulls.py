"""Pulls weights in an elastic worker's process: the model's folder, then version after version.

WeightOrigin ─▶ WeightPulls ─▶ WorkerWeights ── a thread ─▶ FOLDER/NAME ─▶ engine
                                    └─ served on to other workers during the pull, if this
                                       worker was started with an address that they reach
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from distributed import Worker
from distributed.comm.addressing import get_address_host

from artifacts.records import WeightsRef
from artifacts.weight_shards import MODEL
from tasks.elastic.config import MARGIN_S, ElasticConfig
from tasks.elastic.weights.client import fetch
from tasks.elastic.weights.held_version import HeldVersion
from tasks.elastic.weights.server import WeightServer, versions_to_keep
from tasks.elastic.weights.transfer import Pull
from tasks.elastic.worker_card import extension_of

# in the Dask worker's folder, which Dask deletes at the worker's end; after kill -9 the next worker
# with the same --local-directory does
FOLDER = "rollflow-weights"


class WorkerWeights:
    """One elastic worker's folder of weights: the model and the two newest versions."""

    def __init__(self, folder: Path, server: WeightServer | None) -> None:
        """server: passes versions on to other workers; None if they cannot reach this one."""
        self._folder, self._server = folder, server
        self._pulling = asyncio.Lock()
        self._last: HeldVersion | None = None  # the last version that was pulled completely

    async def pull(self, order: Pull) -> WeightsRef:
        """Pull this version, after pulls that were called before; returns its reference, whose path
        is the safetensors file, or the folder if it is the model. Errors: see `client.fetch`."""
        async with self._pulling:
            if self._server is not None:
                await self._server.start()
            serve = self._server.hold if self._server is not None else None
            await asyncio.to_thread(self._make_room, order.name)
            version = await asyncio.to_thread(fetch, order, self._folder, serve, self._last)
            self._last = version if order.name != MODEL else self._last
        return version.manifest.local(version.folder)

    async def close(self) -> None:
        """Stop the server and delete all versions."""
        if self._server is not None:
            await self._server.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _make_room(self, name: str) -> None:
        """Delete the versions that are no longer needed once this one is pulled."""
        self._folder.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in self._folder.iterdir()}
        for old in there - {MODEL, *versions_to_keep(name, there | {name})}:
            shutil.rmtree(self._folder / old, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOrigin:
    """A run's weight server, for its elastic workers, which were started with its token."""

    urls: tuple[str, ...]  # http://ADDRESS:PORT of each of its addresses, the one to ask first
    config: ElasticConfig  # the limits of pulls, and the settings of a worker's own server


class WeightPulls:
    """The pulls of one elastic worker. Lives on its worker's event loop."""

    def __init__(self, origin: WeightOrigin, name: str, worker: Worker) -> None:
        """name: name of the elastic worker's engine."""
        self._origin, self._name = origin, name
        self._token = extension_of(worker).token
        self._loop: asyncio.AbstractEventLoop = worker.loop.asyncio_loop
        server = None
        if worker._start_host:  # started with --host: others reach it there
            address = {"host": get_address_host(worker.address), "interface": (), "port": 0}
            server = WeightServer(origin.config.weights.model_copy(update=address), self._token)
        self._weights = WorkerWeights(Path(worker.local_directory) / FOLDER, server)

    def model(self) -> str:
        """Pull the model's folder; returns its path. Blocks, so call it from a thread other than
        the worker's event loop. Errors: see `pull`."""
        config = self._origin.config
        coming = asyncio.run_coroutine_threadsafe(self.pull(MODEL), self._loop)
        with config.bound("pull_s", f"{self._name}: the pull of version {MODEL}"):
            return coming.result(config.pull_s + MARGIN_S).path

    async def pull(self, name: str) -> WeightsRef:
        """Pull the version of this name; returns its reference on this machine. Raises LimitMissed,
        or as `weights.client.fetch`."""
        config = self._origin.config
        order = Pull(
            origins=self._origin.urls,
            name=name,
            token=self._token,
            deadline_s=config.pull_s,
            receiver=self._name,
        )
        with config.bound("pull_s", f"{self._name}: the pull of version {name}"):
            return await self._weights.pull(order)
