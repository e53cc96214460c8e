"""Elastic workers of a round: engines that it did not begin with, which come and go while it runs.

    whoever admits them ── ElasticNews ──▶ Elastic workers ──▶ the round's sources ──▶ generation
      EngineJoined    it gets what waits, and then new requests; once more when it has newer weights
      EngineLeaving   it gets nothing more; what runs there moves on with its tokens
      EngineGone      what ran there is generated elsewhere

News may come twice, late, or of an engine that the round does not know: whoever hears them makes
nothing of what changes nothing. Leaves out who may be an elastic worker, and how its weights came
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tasks.engines.base import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined:
    """An engine is ready to generate. Its name was never another engine's in this run."""

    engine: Engine  # the replica, idle but for what a round before left on it
    devices: tuple[str, ...]  # the devices that it works on, for the timeline
    version: int  # the weight version that it has
    most_running: int | None = None  # requests that it takes at a time; None for any number


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLeaving:
    """An engine will be gone soon and still answers."""

    name: str  # of the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGone:
    """An engine is gone, whether its calls have failed or not."""

    name: str  # of the engine
    reason: str  # one sentence


ElasticNews = EngineJoined | EngineLeaving | EngineGone


class ElasticWorkers(Protocol):
    """Whoever admits elastic workers, as a round sees them."""

    async def news(self, wait_s: float) -> list[ElasticNews]:
        """What has happened since the last call, the elastic workers that are present first of all;
        waits up to wait_s for the first."""
        ...

    async def give_up(self, name: str, reason: str) -> None:
        """The round will hear nothing more of this elastic worker, which may live and still run
        what it was asked: it is to begin anew before any round asks it again. Never raises for
        that."""
        ...
