"""A version that a weight server holds or is receiving: its shards, and its receivers.

    origin ──▶ first ──▶ second ──▶ third        each receiver passes on a shard once it is verified

Only verified shards are served. `FanOut` names a source for each receiver, so that the origin sends
the version once instead of once per receiver. The receivers form a chain and no tree, because a
receiver's link can send a version once in the time in which it receives one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from artifacts.weight_shards import Manifest

MAX_FROM_ORIGIN = 1  # receivers that pull from the origin at once
MAX_FROM_PEER = 1  # receivers that pull from one peer at once
MAX_FAILED = 256  # addresses in one report of a receiver


class HeldVersion:
    """A version's manifest, the folder of its files, and which of its shards are verified."""

    def __init__(self, manifest: Manifest, folder: Path, ready: Collection[int]) -> None:
        """ready: indices of the shards that are verified already."""
        self.manifest = manifest
        self.folder = folder
        self.fan_out = FanOut()
        self._ready = set(ready)
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def missing(self) -> list[int]:
        """Indices of the shards that are not verified yet, ascending."""
        return [index for index in range(len(self.manifest.shards)) if index not in self._ready]

    def mark(self, index: int) -> None:
        """Mark a shard as verified and wake waiting requests. May be called from any thread."""
        self._ready.add(index)
        for loop, event in tuple(self._waiting):
            loop.call_soon_threadsafe(event.set)

    async def wait_for(self, file: str, start: int, end: int, wait_s: float) -> None:
        """Wait until bytes `start` to `end` of the file are verified; TimeoutError after wait_s."""
        needed = {
            index
            for index, shard in enumerate(self.manifest.shards)
            if shard.file == file and shard.offset < end and start < shard.end
        }
        waiting = asyncio.get_running_loop(), asyncio.Event()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(wait_s):
                while not needed <= self._ready:
                    waiting[1].clear()
                    if not needed <= self._ready:  # marked between the check and the clearing
                        await waiting[1].wait()
        finally:
            self._waiting.remove(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverReport:
    """Report of a receiver to the origin of a version, sent as JSON."""

    receiver: Annotated[str, Field(min_length=1, max_length=200)]  # its name within the run
    # port on which it serves the version on, at its request's address; None if it does not
    port: Annotated[int, Field(gt=0, le=65535)] | None = None
    # addresses of peers from which its pulls failed
    failed: Annotated[tuple[str, ...], Field(max_length=MAX_FAILED)] = ()


# validate_json raises ValueError on anything else
RECEIVER_REPORT = TypeAdapter(ReceiverReport)


@dataclass(slots=True, kw_only=True)
class Receiver:
    """State of one receiver of a version, kept by the origin."""

    url: str | None  # address at which it serves the version on, None if it does not
    source: str | None = None  # name of the receiver that it pulls from, None for the origin
    is_complete: bool = False  # it has every shard
    is_broken: bool = False  # another receiver failed to pull from it


class FanOut:
    """Chooses the source of each receiver of one version, from the receivers' reports. Pure."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}

    def source(self, name: str, url: str | None, failed: Collection[str] = ()) -> str | None:
        """Choose the address from which the receiver `name` pulls; None for the origin. url: where
        it serves the version on. failed: addresses of peers from which its pulls failed. Without a
        free peer the source is the origin, however busy: a receiver never waits."""
        for receiver in self._receivers.values():
            receiver.is_broken |= receiver.url in failed
        self._receivers.pop(name, None)
        chosen = None if self._num_served_by(None) < MAX_FROM_ORIGIN else self._free_peer(name)
        self._receivers[name] = Receiver(url=url, source=chosen)
        return None if chosen is None else self._receivers[chosen].url

    def complete(self, name: str) -> None:
        """Record that this receiver has every shard."""
        if name in self._receivers:
            self._receivers[name].is_complete = True

    def forget(self, name: str) -> None:
        """Remove a receiver that is gone or gave up."""
        self._receivers.pop(name, None)

    def _free_peer(self, name: str) -> str | None:
        """Name of a peer that can serve one more receiver, preferably a complete one."""
        able = [
            peer
            for peer, receiver in self._receivers.items()
            if receiver.url is not None
            and not receiver.is_broken
            and self._num_served_by(peer) < MAX_FROM_PEER
            and not self._waits_for(peer, name)
        ]
        return min(able, key=lambda peer: not self._receivers[peer].is_complete, default=None)

    def _num_served_by(self, source: str | None) -> int:
        return sum(
            receiver.source == source and not receiver.is_complete and not receiver.is_broken
            for receiver in self._receivers.values()
        )

    def _waits_for(self, peer: str, name: str) -> bool:
        """True if the peer pulls from the receiver `name`, directly or through others: receivers
        that wait for each other would wait for ever."""
        source: str | None = peer
        while source is not None and source != name:
            receiver = self._receivers.get(source)
            source = None if receiver is None or receiver.is_complete else receiver.source
        return source is not None
