"""Weight servers on loopback, elastic workers that pull from them, and a wire between them that
fails when it is told to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from artifacts.records import WeightsRef
from artifacts.weight_shards import describe
from tasks.elastic.config import ElasticWeightsConfig
from tasks.elastic.weights.held_version import HeldVersion
from tasks.elastic.weights.pulls import WorkerWeights
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.weights.transfer import Pull

TOKEN = "of-the-run"
CONFIG = ElasticWeightsConfig(host="127.0.0.1")
SHARD = 50_000  # bytes
DRIP_S = 0.02  # between two bytes of a wire that drips


def written(folder: Path, version: int = 7, num_shards: float = 8) -> WeightsRef:
    """A version with bytes of its own."""
    path = folder / f"{version:05d}.safetensors"
    folder.mkdir(exist_ok=True)
    path.write_bytes(random.Random(version).randbytes(int(num_shards * SHARD)))
    return WeightsRef(version=version, path=str(path), digest=f"digest-{version}")


def whole(weights: WeightsRef) -> HeldVersion:
    """The version in small shards, all there."""
    manifest = describe(weights, SHARD)
    return HeldVersion(manifest, Path(weights.path).parent, range(len(manifest.shards)))


@asynccontextmanager
async def serving(*versions: WeightsRef, deltas: bool = False) -> AsyncIterator[WeightServer]:
    server = WeightServer(CONFIG.model_copy(update={"deltas": deltas}), TOKEN)
    await server.start()
    for version in versions:
        server.hold(whole(version))
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def elastic_worker(folder: Path) -> AsyncIterator[WorkerWeights]:
    """One that serves on what it has."""
    server = WeightServer(CONFIG, TOKEN)
    await server.start()
    held = WorkerWeights(folder, server)
    try:
        yield held
    finally:
        await held.close()


def order(
    origin: str,
    *,
    name: str = "7",
    token: str = TOKEN,
    deadline_s: float = 20,
    receiver: str = "elastic-worker-0",
) -> Pull:
    return Pull(origins=(origin,), name=name, token=token, deadline_s=deadline_s, receiver=receiver)


class Wire:
    """Passes bytes on to a server, and counts those that come back."""

    def __init__(self) -> None:
        self.num_bytes = 0  # that came back from the server
        self.heads: list[bytes] = []  # the beginnings of what was asked
        self.cut_at: int | None = None  # of num_bytes, where a connection breaks, once
        self.flip_at: int | None = None  # of num_bytes, where a bit turns over, once
        self.is_silent = False  # nothing comes back any more
        self.drips_from: int | None = None  # of num_bytes, from where one byte comes at a time
        self.url = ""

    async def carry(
        self, server: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parts = urlsplit(server)
        there, out = await asyncio.open_connection(parts.hostname, parts.port)
        there_to_here = asyncio.create_task(self._back(there, writer))
        with suppress(OSError):
            while asked := await reader.read(1 << 16):
                self.heads.append(asked)
                out.write(asked)
        out.close()
        await there_to_here

    async def _back(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):  # it may drip when the test is over
            while piece := await there.read(1 << 14):
                if self.is_silent:
                    continue
                before, self.num_bytes = self.num_bytes, self.num_bytes + len(piece)
                if self.flip_at is not None and before <= self.flip_at < self.num_bytes:
                    place, self.flip_at = self.flip_at - before, None
                    piece = piece[:place] + bytes([piece[place] ^ 1]) + piece[place + 1 :]
                if self.cut_at is not None and before <= self.cut_at < self.num_bytes:
                    self.cut_at = None
                    break
                if self.drips_from is not None and self.num_bytes > self.drips_from:
                    for place in range(len(piece)):
                        writer.write(piece[place : place + 1])
                        await writer.drain()
                        await asyncio.sleep(DRIP_S)
                    continue
                writer.write(piece)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def wire(server: str) -> AsyncIterator[Wire]:
    between = Wire()
    listening = await asyncio.start_server(
        lambda reader, writer: between.carry(server, reader, writer), "127.0.0.1", 0
    )
    host, port = listening.sockets[0].getsockname()
    between.url = f"http://{host}:{port}"
    try:
        yield between
    finally:
        listening.close()
