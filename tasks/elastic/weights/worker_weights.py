"""The versions that an elastic worker has pulled: the last two, served on to others while they
come.

order ──▶ pull (a thread) ──▶ FOLDER/NAME ◀── other elastic workers
                              older ones are deleted
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from artifacts.records import WeightsRef
from artifacts.weight_shards import MODEL
from tasks.elastic.weights.client import Pull, fetch
from tasks.elastic.weights.held import HeldVersion
from tasks.elastic.weights.server import WeightServer, kept_beside


class WorkerWeights:
    """One elastic worker's folder of weights. Pulls of one elastic worker come one after the
    other."""

    def __init__(self, folder: Path, server: WeightServer | None) -> None:
        """server: passes versions on, started; None where nobody can reach this elastic worker."""
        self._folder = folder
        self._server = server
        self._pulling = asyncio.Lock()
        self._last: HeldVersion | None = None  # that it has all of

    async def pull(self, order: Pull) -> WeightsRef:
        """Have this version here. Its path is the safetensors file, or the folder if it is the
        model's. Errors: see `client.pull`."""
        serve = self._serve if self._server else None
        async with self._pulling:
            await asyncio.to_thread(self._make_room, order.name)
            version = await asyncio.to_thread(fetch, order, self._folder, serve, self._last)
            self._last = version if order.name != MODEL else self._last
        return version.manifest.local(version.folder)

    async def close(self) -> None:
        """Serve nobody any more and delete all versions."""
        if self._server is not None:
            await self._server.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _serve(self, version: HeldVersion) -> int:
        assert self._server is not None, "an elastic worker without a server serves nothing"
        self._server.hold(version)
        return self._server.port

    def _make_room(self, name: str) -> None:
        """For this version, beside the one before it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in self._folder.iterdir()}
        for old in there - {MODEL, *kept_beside(name, there | {name})}:
            shutil.rmtree(self._folder / old, ignore_errors=True)
