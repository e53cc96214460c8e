"""Serves weights over HTTP: byte ranges of immutable versions, for receivers that know the token;
and the pictures that prompts show.

    GET  /versions/NAME             the manifest
    GET  /versions/NAME/FILE        bytes of a file (Range); waits for shards that are not there yet
    GET  /versions/NAME/since/OLDER/INDEX   a shard as its difference, if the config allows that
    POST /versions/NAME/source      receiver reports its own port; the answer is its source
    POST /versions/NAME/complete    receiver reports that it has every shard
    GET  /pictures/CONTENT          the file of a picture

The trainer runs one such server, and so does every elastic worker that passes versions on, each
with an event loop in a thread of its own. Requests are validated JSON and never unpickled. Leaves
out encryption.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web

from artifacts.pictures import PictureFolder
from artifacts.records import WeightsRef
from artifacts.reports.elastic_workers import DeniedRequest
from artifacts.weight_shards import (
    MODEL,
    describe,
    describe_model,
    encode_delta,
    read_shard,
    to_json,
)
from tasks.elastic.config import ElasticWeightsConfig
from tasks.elastic.weights.access import SCHEME, Access, WeightRequest
from tasks.elastic.weights.held_version import RECEIVER_REPORT, HeldVersion, ReceiverReport

KEPT_VERSIONS = 2  # as many as the learner keeps, which overwrites older ones
SHARD_WAIT_S = 4.0  # for a shard that is not there yet; afterwards the receiver tries elsewhere
END_S = 2.0  # for answers in progress when the server closes
_MAX_BODY_BYTES = 64 << 10
_PROOF_NEEDED = {"WWW-Authenticate": SCHEME}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WeightServer:
    """Serves the last two published versions, and the model's folder."""

    def __init__(
        self, config: ElasticWeightsConfig, token: str, pictures: PictureFolder | None = None
    ) -> None:
        """config: has a host or interfaces. token: the run's secret. pictures: of the run; None
        where it has none, or another server has them."""
        self.config = config
        self._pictures = pictures
        self._access = Access(token, config.allowed_senders)
        self._held: Mapping[str, HeldVersion] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="weight-server", daemon=True
        )
        self._runner: web.AppRunner | None = None
        self._publishing = asyncio.Lock()  # a version is hashed once
        self._published: WeightsRef | None = None
        self.port = 0  # port and URLs are known once the server has started
        self.urls: tuple[str, ...] = ()  # one an address, in the order of the config

    def denied_requests(self) -> tuple[DeniedRequest, ...]:
        """Unauthorised weight requests, newest first."""
        return self._access.denied_requests

    async def start(self) -> None:
        """Serve, if the server does not yet. Raises OSError if an address cannot be bound,
        ValueError for an interface that this machine lacks."""
        if not self.urls:
            self._thread.start()
            await self._in_thread(self._start())

    async def close(self) -> None:
        """Stop serving, for good. Does nothing if the server was never started."""
        if not self._thread.is_alive():
            return
        if self._runner is not None:
            with suppress(TimeoutError):
                await self._in_thread(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def publish(self, weights: WeightsRef) -> None:
        """Serve this version and the one before it from their own paths; stop serving older ones.
        Raises OSError if the version's file is gone."""
        async with self._publishing:
            if weights == self._published:
                return
            manifest = await asyncio.to_thread(describe, weights)
            self.hold(HeldVersion(manifest, Path(weights.path).parent, range(len(manifest.shards))))
            self._published = weights

    async def publish_model(self, folder: Path) -> None:
        """Serve the model's folder until the server closes."""
        async with self._publishing:
            if MODEL not in self._held:
                manifest = await asyncio.to_thread(describe_model, folder)
                self.hold(HeldVersion(manifest, folder, range(len(manifest.shards))))

    def hold(self, version: HeldVersion) -> int:
        """Serve this version as its shards get verified; returns the server's port. Drops versions
        with a higher number, which a run that goes back publishes again."""
        held = {**self._held, version.manifest.name: version}
        kept = {MODEL, *versions_to_keep(version.manifest.name, held)}
        self._held = {name: held[name] for name in held if name in kept}
        return self.port

    def forget(self, receiver: str) -> None:
        """Stop naming this elastic worker as a source of weights: it is gone."""
        for version in tuple(self._held.values()):
            self._loop.call_soon_threadsafe(version.fan_out.forget, receiver)

    async def _in_thread(self, work: Awaitable[None]) -> None:
        async def done() -> None:
            await work

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(done(), self._loop))

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY_BYTES)
        app.add_routes(
            [
                web.get("/versions/{name}", self._manifest),
                web.get("/versions/{name}/since/{older}/{index:[0-9]+}", self._difference),
                web.get("/versions/{name}/{file:.+}", self._bytes),
                web.post("/versions/{name}/source", self._source),
                web.post("/versions/{name}/complete", self._complete),
                web.get("/pictures/{content:[0-9a-f]{64}}", self._picture),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=END_S)
        await self._runner.setup()
        for address in self.config.addresses:  # all with one port: the first one's, if any will do
            await web.TCPSite(self._runner, address, self.config.port or self.port).start()
            self.port = self._runner.addresses[-1][1]
        self.urls = tuple(server_url(bound[0], bound[1]) for bound in self._runner.addresses)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check every request, to known and unknown paths, before it is handled."""
        status = self._access.barred(request.remote or "")
        if status is None:
            authorization = request.headers.get("Authorization")
            signed = WeightRequest(
                method=request.method,
                path=request.raw_path,
                ranges=request.headers.get("Range", ""),
                body=await request.read(),
                sender=request.remote or "",
            )
            status = self._access.refused(signed, authorization)
        if status is None:
            return await handler(request)
        headers = _PROOF_NEEDED if status is HTTPStatus.UNAUTHORIZED else {}
        return web.Response(status=status, headers=headers, text=f"{status.phrase}\n")

    async def _manifest(self, request: web.Request) -> web.Response:
        manifest = self._version(request).manifest
        return web.Response(body=to_json(manifest), content_type="application/json")

    async def _bytes(self, request: web.Request) -> web.StreamResponse:
        version, file = self._version(request), request.match_info["file"]
        size = version.manifest.files.get(file)
        if size is None:
            raise web.HTTPNotFound(text=f"version {version.manifest.name} has no file {file}")
        try:
            wanted = request.http_range
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        start, end, _ = wanted.indices(size)
        await _arrived(version, file, start, end)
        if not (version.folder / file).is_file():
            raise web.HTTPGone(text=self._gone(version.manifest.name))
        return web.FileResponse(version.folder / file)

    async def _difference(self, request: web.Request) -> web.Response:
        version, index = self._version(request), int(request.match_info["index"])
        older = self._held.get(request.match_info["older"])
        shards = version.manifest.shards
        is_there = older is not None and version.manifest.resembles(older.manifest)
        if not self.config.deltas or older is None or not is_there or index >= len(shards):
            raise web.HTTPNotFound(text="this version is not told as a difference to that one")
        for held in (version, older):
            shard = held.manifest.shards[index]
            await _arrived(held, shard.file, shard.offset, shard.end)
        try:
            return web.Response(body=await asyncio.to_thread(_encoded, version, older, index))
        except OSError:
            raise web.HTTPGone(text=self._gone(older.manifest.name)) from None

    async def _source(self, request: web.Request) -> web.Response:
        version, report = self._version(request), await _report(request)
        url = None if report.port is None else server_url(request.remote or "", report.port)
        source = version.fan_out.source(report.receiver, url, report.failed)
        return web.json_response({"source": source})

    async def _complete(self, request: web.Request) -> web.Response:
        version, report = self._version(request), await _report(request)
        version.fan_out.complete(report.receiver)
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _picture(self, request: web.Request) -> web.Response:
        content = request.match_info["content"]
        if self._pictures is None:
            raise web.HTTPNotFound(text="no pictures are served here")
        try:
            return web.Response(body=await asyncio.to_thread(self._pictures.read, content))
        except FileNotFoundError:
            raise web.HTTPNotFound(text=f"the run shows no picture {content}") from None
        except ValueError as error:
            raise web.HTTPGone(text=str(error)) from None

    def _version(self, request: web.Request) -> HeldVersion:
        name = request.match_info["name"]
        held = self._held.get(name)
        if held is not None:
            return held
        if name.isdecimal() and any(int(kept) > int(name) for kept in self._numbered):
            raise web.HTTPGone(text=self._gone(name))
        raise web.HTTPNotFound(text=f"version {name} has not been published here")

    @property
    def _numbered(self) -> list[str]:
        return sorted((name for name in self._held if name != MODEL), key=int)

    def _gone(self, name: str) -> str:
        kept = " and ".join(self._numbered[-KEPT_VERSIONS:])
        return f"version {name} is gone, {kept} are kept; pull the last one"


def server_url(address: str, port: int) -> str:
    """URL of a weight server at this address and port."""
    is_v6 = ip_address(address).version == 6
    return f"http://[{address}]:{port}" if is_v6 else f"http://{address}:{port}"


def versions_to_keep(name: str, names: Iterable[str]) -> list[str]:
    """The two newest numeric versions that are not newer than `name`, if that is a number."""
    numbered = sorted((other for other in names if other != MODEL), key=int)
    if name != MODEL:
        numbered = [other for other in numbered if int(other) <= int(name)]
    return numbered[-KEPT_VERSIONS:]


async def _arrived(version: HeldVersion, file: str, start: int, end: int) -> None:
    try:
        await version.wait_for(file, start, end, SHARD_WAIT_S)
    except TimeoutError:
        raise web.HTTPServiceUnavailable(text="these bytes have not come yet") from None


def _encoded(version: HeldVersion, older: HeldVersion, index: int) -> bytes:
    new, old = (read_shard(held.folder, held.manifest.shards[index]) for held in (version, older))
    return encode_delta(new, old)


async def _report(request: web.Request) -> ReceiverReport:
    try:
        return RECEIVER_REPORT.validate_json(await request.read())
    except ValueError as error:
        raise web.HTTPBadRequest(text=str(error)) from None
