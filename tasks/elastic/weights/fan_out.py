"""Who gets a version from whom, so that it leaves the origin once and not once for every receiver.

    origin ──▶ first ──▶ second ──▶ third        each passes a shard on as soon as it has it

Pure: told who asks, who has all and who is gone. A chain and no tree, because a receiver's link
carries a version out as fast as it carries it in, once: the last of n receivers is n - 1 shards
behind the first. A finished receiver is the best source, as nothing can hold it up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

MOST_FROM_ORIGIN = 1  # receivers at the origin's link at once
MOST_FROM_PEER = 1  # receivers at a peer's link at once


@dataclass(slots=True, kw_only=True)
class Receiver:
    """Somebody who asked for the version."""

    url: str | None  # where it serves the version on, None if it does not
    source: str | None = None  # the name of who serves it, None for the origin
    is_complete: bool = False  # it has every shard
    is_broken: bool = False  # somebody could not get its shards from there


class FanOut:
    """The receivers of one version, by name."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}

    def source(self, name: str, url: str | None, failed: Collection[str] = ()) -> str | None:
        """The address from which this receiver pulls, None for the origin. failed: the addresses
        that did not serve it.

        Without a free peer it is the origin however busy: a receiver never waits for another.
        """
        for receiver in self._receivers.values():
            receiver.is_broken |= receiver.url in failed
        self._receivers.pop(name, None)
        chosen = None if self._served_by(None) < MOST_FROM_ORIGIN else self._free_peer(name)
        self._receivers[name] = Receiver(url=url, source=chosen)
        return None if chosen is None else self._receivers[chosen].url

    def complete(self, name: str) -> None:
        """This receiver has every shard."""
        if name in self._receivers:
            self._receivers[name].is_complete = True

    def forget(self, name: str) -> None:
        """This receiver is gone, or gave up."""
        self._receivers.pop(name, None)

    def _free_peer(self, name: str) -> str | None:
        """Who serves the fewest of those that can; who is complete comes first."""
        able = [
            peer
            for peer, receiver in self._receivers.items()
            if receiver.url is not None
            and not receiver.is_broken
            and self._served_by(peer) < MOST_FROM_PEER
            and not self._waits_for(peer, name)
        ]
        return min(able, key=lambda peer: not self._receivers[peer].is_complete, default=None)

    def _served_by(self, source: str | None) -> int:
        return sum(
            receiver.source == source and not receiver.is_complete and not receiver.is_broken
            for receiver in self._receivers.values()
        )

    def _waits_for(self, peer: str, name: str) -> bool:
        """Whether the peer gets its shards from this name, over others or not: two receivers that
        wait for each other would wait for ever."""
        source: str | None = peer
        while source is not None and source != name:
            receiver = self._receivers.get(source)
            source = None if receiver is None or receiver.is_complete else receiver.source
        return source is not None
