"""Pulls weights in an elastic worker's process: the model's folder, then version after version.

    WeightOrigin ─▶ WeightPulls ─▶ WorkerWeights ── a thread ─▶ FOLDER/NAME ─▶ engine
                                        └─ served on to other workers during the pull, if this
                                           worker was started with an address that they reach

The two newest versions are kept. FOLDER is in the folder of the Dask worker, which deletes it when
it ends; after kill -9 the next worker with the same --local-directory does. The worker was started
with the token, so the run never sends one. Leaves out the engine (`tasks.elastic.engines`).
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from distributed import Worker
from distributed.comm.addressing import get_address_host

from artifacts.records import WeightsRef
from artifacts.weight_shards import MODEL
from tasks.elastic.config import MARGIN_S, Limits, WeightServerConfig
from tasks.elastic.weights.client import Pull, fetch
from tasks.elastic.weights.held_version import HeldVersion
from tasks.elastic.weights.server import WeightServer, versions_to_keep
from tasks.elastic.worker_card import token_of

FOLDER = "rollflow-weights"


class WorkerWeights:
    """One elastic worker's folder of weights. Runs one pull at a time."""

    def __init__(self, folder: Path, server: WeightServer | None) -> None:
        """server: a started server that passes versions on to other workers; None if they cannot
        reach this one."""
        self._folder = folder
        self._server = server
        self._pulling = asyncio.Lock()
        self._last: HeldVersion | None = None  # the last version that was pulled completely

    async def pull(self, order: Pull) -> WeightsRef:
        """Pull this version; returns its reference, whose path is the safetensors file, or the
        folder if it is the model. Errors: see `client.fetch`."""
        serve = self._serve if self._server else None
        async with self._pulling:
            await asyncio.to_thread(self._make_room, order.name)
            version = await asyncio.to_thread(fetch, order, self._folder, serve, self._last)
            self._last = version if order.name != MODEL else self._last
        return version.manifest.local(version.folder)

    async def close(self) -> None:
        """Stop the server and delete all versions."""
        if self._server is not None:
            await self._server.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _serve(self, version: HeldVersion) -> int:
        assert self._server is not None, "an elastic worker without a server serves nothing"
        self._server.hold(version)
        return self._server.port

    def _make_room(self, name: str) -> None:
        """Delete the versions that are no longer needed once this one is pulled."""
        self._folder.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in self._folder.iterdir()}
        for old in there - {MODEL, *versions_to_keep(name, there | {name})}:
            shutil.rmtree(self._folder / old, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOrigin:
    """Address and settings of a run's weight server, for its elastic workers."""

    url: str  # http://ADDRESS:PORT
    allowed_senders: tuple[str, ...]  # networks that elastic workers are in
    deltas: bool  # versions come as differences
    limits: Limits  # of its elastic workers


class WeightPulls:
    """The pulls of one elastic worker. Lives on its worker's event loop."""

    def __init__(self, origin: WeightOrigin, name: str, worker: Worker) -> None:
        """name: name of the elastic worker's engine."""
        self._origin, self._name = origin, name
        self._token = token_of(worker)
        self._loop: asyncio.AbstractEventLoop = worker.loop.asyncio_loop
        self._folder = Path(worker.local_directory) / FOLDER
        self._server: WeightServer | None = None
        if worker._start_host:  # started with --host: others reach it there
            config = WeightServerConfig(
                host=get_address_host(worker.address),
                allowed_senders=origin.allowed_senders,
                deltas=origin.deltas,
            )
            self._server = WeightServer(config, self._token)
        self._weights: WorkerWeights | None = None

    def model(self) -> str:
        """Pull the model's folder; returns its path. Blocks, so call it from a thread other than
        the worker's event loop. Errors: see `pull`."""
        coming = asyncio.run_coroutine_threadsafe(self.pull(MODEL), self._loop)
        with self._bound(MODEL):
            return coming.result(self._origin.limits.pull_s + MARGIN_S).path

    async def pull(self, name: str) -> WeightsRef:
        """Pull the version of this name; returns its reference on this machine. Raises LimitMissed,
        or as `weights.client.fetch`."""
        if self._weights is None:  # the first pull, that of the model, comes before all others
            self._folder.mkdir(exist_ok=True)
            if self._server is not None:
                await self._server.start()
            self._weights = WorkerWeights(self._folder, self._server)
        order = Pull(
            origin=self._origin.url,
            name=name,
            token=self._token,
            deadline_s=self._origin.limits.pull_s,
            receiver=self._name,
        )
        with self._bound(name):
            return await self._weights.pull(order)

    def _bound(self, name: str) -> AbstractContextManager[None]:
        return self._origin.limits.bound("pull_s", f"{self._name}: the pull of version {name}")
