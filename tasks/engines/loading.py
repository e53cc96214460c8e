"""A weight version into all engines of a run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from artifacts.records import Running, WeightsRef
from tasks.engines.base import Attestation, Engine


async def load_all(
    engines: Sequence[Engine],
    weights: WeightsRef,
    probes: Sequence[tuple[int, ...]],
    running: Running = Running.DROP,
) -> dict[str, Attestation]:
    """Load a version into every engine; what they attest, by engine."""
    calls = (engine.load_weights(weights, probes, running) for engine in engines)
    attested = await asyncio.gather(*calls)
    return {engine.name: held for engine, held in zip(engines, attested, strict=True)}
