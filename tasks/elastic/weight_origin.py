"""Where the elastic workers of a run pull its model and weights: a weight server in the flow's
process.

    elastic worker that needs a version ─▶ offer ─▶ hashed once, served from where it lies ─▶ pulled

Nothing is hashed while there is no elastic worker. The learner writes a version over the one before
the last by renaming that file first, so that the server finds it gone, and who was receiving it
finds its bytes wrong: both are told, and the newer version is pulled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from artifacts.records import WeightsRef
from artifacts.reports.elastic_workers import DeniedRequest
from tasks.elastic.pulls import WeightOrigin
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.weights.weight_config import WeightServerConfig
from tasks.elastic.worker_limits import Limits


class RunWeightServer:
    """Of one run. For the coroutines of one event loop."""

    def __init__(self, config: WeightServerConfig, token: str, model: Path, limits: Limits) -> None:
        """token: the run's. model: the folder that the run starts from."""
        self._config, self._token, self._model = config, token, model
        self._limits = limits
        self._server: WeightServer | None = None
        self._offering = asyncio.Lock()
        self._has_model = False
        self._offered: WeightsRef | None = None

    @property
    def knocks(self) -> Sequence[DeniedRequest]:
        """Who asked without a right, last first."""
        return () if self._server is None else self._server.knocks

    async def open(self) -> None:
        """Serve from now on; harmless when it does already. ValueError for an address that is not
        this machine's, or taken."""
        if self._server is not None:
            return
        server = WeightServer(self._config, self._token)
        try:
            await server.start()
        except OSError as error:
            await server.close()
            raise ValueError(
                "elastic.weights.host and port must be free on this machine, got"
                f" {self._config.host} and {self._config.port} ({error}); correct them"
            ) from error
        self._server = server

    async def close(self) -> None:
        """Serve nobody any more."""
        if self._server is not None:
            await self._server.close()

    async def offer_model(self) -> WeightOrigin:
        """Have the model's folder served; what an elastic worker is told of this server."""
        async with self._offering:
            if not self._has_model:
                await self._serving.publish_model(self._model)
                self._has_model = True
        return WeightOrigin(
            url=self._serving.url,
            allowed_senders=self._config.allowed_senders,
            deltas=self._config.deltas,
            limits=self._limits,
        )

    async def offer(self, weights: WeightsRef) -> None:
        """Have this version served, and the one before it. Raises OSError when it is gone."""
        async with self._offering:
            if weights != self._offered:
                await self._serving.publish(weights)
                self._offered = weights

    def forget(self, elastic_worker: str) -> None:
        """This elastic worker is gone: nobody is sent to it any more."""
        if self._server is not None:
            self._server.forget(elastic_worker)

    @property
    def _serving(self) -> WeightServer:
        assert self._server is not None, "it is open"
        return self._server
