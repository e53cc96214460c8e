"""Pulls a version from the origin or a peer. A broken transfer is resumed; every shard is verified.

    manifest ◀── origin
    shards   ◀── origin or peer ── hash while receiving ──▶ FOLDER/NAME/file, marked one by one

A shard with a wrong hash is fetched once more, from the origin. The manifest comes from the origin
alone, so that no peer can pass off other weights.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from blake3 import blake3

from artifacts.weight_shards import (
    Manifest,
    Shard,
    decode_delta,
    from_json,
    read_shard,
    right_shards,
)
from tasks.elastic.weights.held_version import HeldVersion
from tasks.elastic.weights.transfer import (
    Pull,
    ServerConnection,
    TransferBroken,
    TransferSources,
    WeightsRefused,
)

logger = logging.getLogger(__name__)

CONNECTIONS = 2  # one receives while the other hashes
PAUSE_S = 0.2  # before another request to an origin that did not answer


Serve = Callable[[HeldVersion], int]  # serves a version on while it comes; returns its port


def fetch(
    order: Pull, folder: Path, serve: Serve | None = None, older: HeldVersion | None = None
) -> HeldVersion:
    """Pull a version into `folder`/NAME and verify every shard. Raises WeightsRefused if it cannot
    be had (access denied, version gone, a shard corrupted twice, disk full), TimeoutError after
    deadline_s. serve: called before the transfer, to pass shards on while others are still missing.
    older: a local version; the new one's shards may be sent as differences to it."""
    end_s = time.monotonic() + order.deadline_s
    sources = TransferSources(order, end_s)
    manifest = _manifest(sources, order, end_s)
    version = HeldVersion(manifest, folder / order.name, _prepared(manifest, folder / order.name))
    if version.missing:
        sources.port = serve(version) if serve else None
        _Transfer(order, version, sources, end_s, older).run()
    return version


def _check_time(order: Pull, end_s: float, progress: Callable[[], str]) -> None:
    if time.monotonic() >= end_s:
        raise TimeoutError(
            f"version {order.name} did not come from {' or '.join(order.origins)} within"
            f" {order.deadline_s:.0f} s: {progress()}"
        )


def _manifest(sources: TransferSources, order: Pull, end_s: float) -> Manifest:
    """Get the manifest from the origin; retry until the deadline while it is silent at all of its
    addresses."""
    while True:
        origin = sources.origin
        try:
            with closing(ServerConnection(origin, order.token, end_s)) as connection:
                manifest = from_json(connection.request("GET", f"/versions/{order.name}"))
        except TransferBroken as error:
            _check_time(order, end_s, error.__str__)
            sources.give_up(origin, str(error))
            time.sleep(PAUSE_S)
            continue
        if manifest.name != order.name:
            raise WeightsRefused(f"{origin} gave version {manifest.name} for {order.name}")
        return manifest


def _prepared(manifest: Manifest, folder: Path) -> frozenset[int]:
    """Create the version's files at full size; returns the verified shards that were there."""
    was_there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if not was_there and free < manifest.num_bytes:
        raise WeightsRefused(
            f"version {manifest.name} needs {manifest.num_bytes} bytes in {folder}, {free} are"
            " free; make room, or pull into another folder"
        )
    for name, size in manifest.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, size)
    return right_shards(manifest, folder) if was_there else frozenset()


class _Transfer:
    """Fetches the missing shards of one version over CONNECTIONS connections."""

    def __init__(
        self,
        order: Pull,
        version: HeldVersion,
        sources: TransferSources,
        end_s: float,
        older: HeldVersion | None,
    ) -> None:
        self._order, self._version, self._end_s = order, version, end_s
        self._sources = sources
        self._left = deque(version.missing)
        resembles = older is not None and version.manifest.resembles(older.manifest)
        self._older = older if resembles else None

    def run(self) -> None:
        """Fetch all missing shards; returns when every one is verified."""
        self._sources.find()
        with ThreadPoolExecutor(CONNECTIONS, "weights") as threads:
            lanes = [threads.submit(self._lane) for _ in range(CONNECTIONS)]
        for lane in lanes:
            lane.result()
        self._sources.complete()

    def _lane(self) -> None:
        """Fetch shard after shard over one connection. If it fails, the other lane stops, too."""
        try:
            token, end_s = self._order.token, self._end_s
            with closing(ServerConnection(self._sources.current, token, end_s)) as connection:
                while (index := self._next()) is not None:
                    self._fetch(index, connection)
        except BaseException:
            self._left.clear()
            raise

    def _next(self) -> int | None:
        with suppress(IndexError):  # the other thread has taken the last one
            return self._left.popleft()
        return None

    def _fetch(self, index: int, connection: ServerConnection) -> None:
        shard = self._version.manifest.shards[index]
        older = self._older  # another lane may set it to None if differences cannot be had
        if older is not None and self._decoded(index, connection, older):
            self._version.mark(index)
            return
        came = self._received(shard, connection, lambda: self._sources.current)
        if came != shard.blake3:
            self._sources.give_up(connection.url, f"its bytes of {shard.file} were wrong")
            came = self._received(shard, connection, lambda: self._sources.origin)
        if came != shard.blake3:
            raise WeightsRefused(
                f"bytes {shard.offset} to {shard.end} of {shard.file}, version"
                f" {self._order.name}, must have BLAKE3 {shard.blake3}, they came twice with"
                f" another, at last {came} from {self._sources.origin}; check the link and the file"
                " there"
            )
        self._version.mark(index)

    def _decoded(self, index: int, connection: ServerConnection, older: HeldVersion) -> bool:
        """Fetch a shard as a difference to the older version; after one failure no other."""
        shard = self._version.manifest.shards[index]
        path = f"/versions/{self._order.name}/since/{older.manifest.name}/{index}"
        try:
            connection.switch(self._sources.current)
            sent = connection.request("GET", path)
            came = decode_delta(sent, read_shard(older.folder, older.manifest.shards[index]))
        except (TransferBroken, ValueError, FileNotFoundError) as error:
            logger.info("pulling whole shards of version=%s: %s", self._order.name, error)
            self._older = None
            return False
        self._check_time()
        if blake3(came).hexdigest() != shard.blake3:
            self._older = None
            return False
        with open(self._version.folder / shard.file, "r+b") as file:
            file.seek(shard.offset)
            file.write(came)
        return True

    def _received(
        self, shard: Shard, connection: ServerConnection, source: Callable[[], str]
    ) -> str:
        """Receive and write the shard, resumed where it breaks; returns its BLAKE3 hash."""
        total, done = blake3(), 0
        with open(self._version.folder / shard.file, "r+b") as file:
            file.seek(shard.offset)
            while done < shard.size:
                connection.switch(source())
                try:
                    with closing(connection.receive(self._order.name, shard, done)) as blocks:
                        for block in blocks:
                            total.update(block)
                            file.write(block)
                            done += len(block)
                            self._check_time()
                except TransferBroken as error:
                    self._check_time()
                    if not self._sources.give_up(connection.url, str(error)):
                        time.sleep(PAUSE_S)
                except WeightsRefused as error:
                    if not self._sources.give_up(connection.url, str(error)):
                        raise
        return total.hexdigest()

    def _check_time(self) -> None:
        _check_time(self._order, self._end_s, self._progress)

    def _progress(self) -> str:
        total = len(self._version.manifest.shards)
        return f"{total - len(self._version.missing)} of {total} shards are there"
