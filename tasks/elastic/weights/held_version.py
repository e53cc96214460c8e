"""A version that a weight server has or is about to have: its shards, and its receivers.

    origin ──▶ first ──▶ second ──▶ third        each passes a shard on as soon as it has it

A receiver marks shards from its threads; the server's event loop waits. A shard that is not yet
verified is never read. `FanOut` chooses who gets the version from whom, so that it leaves the
origin once and not once for every receiver: a chain and no tree, because a receiver's link carries
a version out as fast as it carries it in, once. The last of n receivers is n - 1 shards behind the
first. A finished receiver is the best source, as nothing can hold it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from artifacts.weight_shards import Manifest

MAX_FROM_ORIGIN = 1  # receivers at the origin's link at once
MAX_FROM_PEER = 1  # receivers at a peer's link at once
MAX_FAILED = 256  # addresses that a receiver reports at once


class HeldVersion:
    """A manifest, the folder of its files, and the verified shards in that."""

    def __init__(self, manifest: Manifest, folder: Path, ready: Collection[int]) -> None:
        """ready: indices of shards."""
        self.manifest = manifest
        self.folder = folder
        self.fan_out = FanOut()
        self._ready = set(ready)
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def missing(self) -> list[int]:
        """The indices of the shards that are not there yet, in order."""
        return [index for index in range(len(self.manifest.shards)) if index not in self._ready]

    def mark(self, index: int) -> None:
        """Mark a shard as there and verified. From any thread."""
        self._ready.add(index)
        for loop, event in tuple(self._waiting):
            loop.call_soon_threadsafe(event.set)

    async def wait_for(self, file: str, start: int, end: int, wait_s: float) -> None:
        """Wait until all shards of these bytes are there. Raises TimeoutError after wait_s."""
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
    """Report of a receiver to the server of a version, sent as JSON."""

    receiver: Annotated[str, Field(min_length=1, max_length=200)]  # its name within the run
    # where it serves the version on, at the address that it asks from; None if it does not
    port: Annotated[int, Field(gt=0, le=65535)] | None = None
    # addresses of peers that did not serve it
    failed: Annotated[tuple[str, ...], Field(max_length=MAX_FAILED)] = ()


# validate_json raises ValueError on anything else
RECEIVER_REPORT = TypeAdapter(ReceiverReport)


@dataclass(slots=True, kw_only=True)
class Receiver:
    """A receiver of a version, as its origin knows it."""

    url: str | None  # where it serves the version on, None if it does not
    source: str | None = None  # name of the receiver that it pulls from, None for the origin
    is_complete: bool = False  # it has every shard
    is_broken: bool = False  # another receiver could not get its shards from there


class FanOut:
    """The receivers of one version, by name. Pure: reports of receivers in, sources out."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}

    def source(self, name: str, url: str | None, failed: Collection[str] = ()) -> str | None:
        """The address from which this receiver pulls, None for the origin. failed: the addresses
        that did not serve it.

        Without a free peer the source is the origin, however busy: a receiver never waits.
        """
        for receiver in self._receivers.values():
            receiver.is_broken |= receiver.url in failed
        self._receivers.pop(name, None)
        chosen = None if self._num_served_by(None) < MAX_FROM_ORIGIN else self._free_peer(name)
        self._receivers[name] = Receiver(url=url, source=chosen)
        return None if chosen is None else self._receivers[chosen].url

    def complete(self, name: str) -> None:
        """Note that this receiver has every shard."""
        if name in self._receivers:
            self._receivers[name].is_complete = True

    def forget(self, name: str) -> None:
        """Drop a receiver that is gone, or gave up."""
        self._receivers.pop(name, None)

    def _free_peer(self, name: str) -> str | None:
        """A peer that can serve one more receiver, complete ones first."""
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
        """True if the peer gets its shards from this name, over others or not: two receivers that
        wait for each other would wait for ever."""
        source: str | None = peer
        while source is not None and source != name:
            receiver = self._receivers.get(source)
            source = None if receiver is None or receiver.is_complete else receiver.source
        return source is not None
