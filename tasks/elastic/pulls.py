"""What an elastic worker pulls from its run, and passes on to other elastic workers: in the process
of the elastic worker.

    Origin ─▶ WeightPulls ── its worker's folder ─▶ engine
                  ▲ └─ served on, where the worker was told on which address others reach it
                the token is the worker's own: none is sent here

The folder is in that of the Dask worker, which deletes it when it ends; after kill -9 the next
worker with the same --local-directory does. Leaves out the engine (`engine`).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from distributed import Worker
from distributed.comm.addressing import get_address_host

from artifacts.records import WeightsRef
from artifacts.weight_shards import MODEL
from tasks.elastic.weights.client import Pull
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.weights.weight_config import WeightServerConfig
from tasks.elastic.weights.worker_weights import WorkerWeights
from tasks.elastic.worker_card import token_of
from tasks.elastic.worker_limits import MARGIN_S, Limits

FOLDER = "rollflow-weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOrigin:
    """A run's weight server, as elastic workers are told of it."""

    url: str  # http://ADDRESS:PORT
    allowed_senders: tuple[str, ...]  # networks that elastic workers are in
    deltas: bool  # whether versions come as differences
    limits: Limits  # of its elastic workers


class WeightPulls:
    """Of one elastic worker. Lives on its worker's event loop."""

    def __init__(self, origin: WeightOrigin, elastic_worker: str, worker: Worker) -> None:
        """elastic worker: its name within the run."""
        self._origin, self._elastic_worker = origin, elastic_worker
        self._token = token_of(worker)
        self._loop: asyncio.AbstractEventLoop = worker.loop.asyncio_loop
        self._folder = Path(worker.local_directory) / FOLDER
        self._server = own_server(origin, worker, self._token)
        self._weights: WorkerWeights | None = None

    def model(self) -> str:
        """The model's folder, pulled. Blocks; for a thread of the worker that is not its loop's.
        Errors: see `pull`."""
        coming = asyncio.run_coroutine_threadsafe(self.pull(MODEL), self._loop)
        with self._bound(MODEL):
            return coming.result(self._origin.limits.pull_s + MARGIN_S).path

    async def pull(self, name: str) -> WeightsRef:
        """The version of this name, here. Raises LimitMissed, else as `weights.client.pull`."""
        weights = await self._opened()
        order = Pull(
            origin=self._origin.url,
            name=name,
            token=self._token,
            deadline_s=self._origin.limits.pull_s,
            receiver=self._elastic_worker,
        )
        with self._bound(name):
            return await weights.pull(order)

    def _bound(self, name: str) -> AbstractContextManager[None]:
        return self._origin.limits.bound(
            "pull_s", f"{self._elastic_worker}: the pull of version {name}"
        )

    async def _opened(self) -> WorkerWeights:
        """The first pull, that of the model, comes before all others."""
        if self._weights is None:
            self._folder.mkdir(exist_ok=True)
            if self._server is not None:
                await self._server.start()
            self._weights = WorkerWeights(self._folder, self._server)
        return self._weights


def own_server(origin: WeightOrigin, worker: Worker, token: str) -> WeightServer | None:
    """What passes versions on; None for a worker that was not told which address others reach it
    on (--host)."""
    if not worker._start_host:
        return None
    host = get_address_host(worker.address)
    senders = origin.allowed_senders
    config = WeightServerConfig(host=host, allowed_senders=senders, deltas=origin.deltas)
    return WeightServer(config, token)
