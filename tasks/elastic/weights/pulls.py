"""Pulls weights in an elastic worker's process: the model's folder, then version after version; and
pictures, each before a request shows it for the first time.

WeightOrigin ─▶ WeightPulls ─▶ WorkerWeights ── a thread ─▶ FOLDER/NAME ─▶ engine
                    │               └─ served on to other workers during the pull, if this
                    │                  worker was started with an address that they reach
                    └────────▶ WorkerPictures ─ a thread ─▶ PICTURES/CONTENT ─▶ engine
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from distributed import Worker
from distributed.comm.addressing import get_address_host

from artifacts.pictures import PictureFolder, content_of
from artifacts.records import WeightsRef
from artifacts.store import Store
from artifacts.weight_shards import MODEL
from tasks.elastic.config import MARGIN_S, ElasticConfig
from tasks.elastic.weights.client import fetch
from tasks.elastic.weights.held_version import HeldVersion
from tasks.elastic.weights.server import WeightServer, versions_to_keep
from tasks.elastic.weights.transfer import (
    Pull,
    ServerConnection,
    TransferBroken,
    WeightsRefused,
)
from tasks.elastic.worker_card import extension_of

# in the Dask worker's folder, which Dask deletes at the worker's end; after kill -9 the next worker
# with the same --local-directory does
FOLDER = "rollflow-weights"
PICTURES = "rollflow-pictures"  # likewise; none is dropped before
PAUSE_S = 0.2  # before another request to a server that did not answer


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


class WorkerPictures:
    """One elastic worker's folder of the run's pictures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept = PictureFolder(Store.open(str(folder)))
        self._contents: set[str] = set()  # that are there

    def pull(self, contents: Iterable[str], order: Pull) -> None:
        """Bring the pictures with these contents here, one after the other; blocks. Raises
        WeightsRefused for one that cannot be had, TimeoutError after the order's deadline_s, and
        OSError where there is no room."""
        missing = [content for content in dict.fromkeys(contents) if content not in self._contents]
        if not missing:
            return
        end_s = time.monotonic() + order.deadline_s
        origins = cycle(order.origins)
        with closing(ServerConnection(next(origins), order.token, end_s)) as connection:
            for content in missing:
                self._receive(content, connection, origins, end_s)

    def _receive(
        self, content: str, connection: ServerConnection, origins: Iterator[str], end_s: float
    ) -> None:
        while True:
            try:
                data = connection.request("GET", f"/pictures/{content}")
                break
            except TransferBroken as error:
                if time.monotonic() >= end_s:
                    raise TimeoutError(f"the picture {content} did not come: {error}") from error
                time.sleep(PAUSE_S)
                connection.switch(next(origins))
        if content_of(data) != content:
            raise WeightsRefused(
                f"{connection.url} must give the picture {content}, it gave {len(data)} bytes of"
                " another; check the link"
            )
        self._kept.keep(data)
        self._contents.add(content)


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
        folder = Path(worker.local_directory)
        self._weights = WorkerWeights(folder / FOLDER, server)
        self.pictures = WorkerPictures(folder / PICTURES)

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
        with config.bound("pull_s", f"{self._name}: the pull of version {name}"):
            return await self._weights.pull(self._order(name))

    async def pull_pictures(self, contents: Iterable[str]) -> None:
        """Bring these pictures to this machine. Raises as `WorkerPictures.pull`."""
        await asyncio.to_thread(self.pictures.pull, contents, self._order(PICTURES))

    def _order(self, name: str) -> Pull:
        return Pull(
            origins=self._origin.urls,
            name=name,
            token=self._token,
            deadline_s=self._origin.config.pull_s,
            receiver=self._name,
        )
