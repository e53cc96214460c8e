"""The Engine seam: what a rollout replica can do, whoever generates.

    submit(requests) ... collect() -> finished responses, a few at a time ... abort(ids) -> partial
    responses come by collect()

Implementations: `vllm_engine.VllmEngine` (real) and `simulated.SimulatedEngine` (discrete events on
a virtual clock).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from artifacts.records import Generated, Request, WeightsRef


class EngineLost(RuntimeError):
    """The replica died or does not answer; its requests must be launched elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A reading of one replica."""

    engine: str  # name of the replica
    version: int  # weight version it samples with
    num_running: int  # requests in the batch
    num_waiting: int  # requests queued behind it
    kv_usage: float  # share of the KV cache in use, 0..1
    # the largest share since the replica loaded its weights: a round's, because every round begins
    # with a load
    kv_usage_max: float
    kv_tokens: int  # tokens that fit the KV cache
    progress: Mapping[str, int]  # generated tokens so far of every request in it, by response id
    num_preemptions: int  # since the replica loaded its weights
    tokens_generated: int  # since the replica started
    busy_s: float  # seconds spent stepping since the replica started


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """What an engine says of the weights it samples with; the sync gate compares it with the
    learner's own."""

    version: int  # the version it was told to load
    fingerprints: Mapping[
        str, int
    ]  # exact checksum of every tensor, by the checkpoint's tensor name
    probe_logprobs: tuple[
        tuple[float, ...], ...
    ]  # log-probability of each token of each probe after its first, nats


class Engine(Protocol):
    """One rollout replica. Every call has a deadline inside and raises EngineLost when the replica
    is gone."""

    name: str

    async def submit(self, requests: Sequence[Request]) -> None:
        """Queue these; the order is kept."""
        ...

    async def collect(self, wait_s: float) -> list[Generated]:
        """Responses finished or aborted since the last call; waits up to wait_s for the first.
        Empty after wait_s."""
        ...

    async def abort(self, response_ids: Sequence[str]) -> None:
        """Stop these; each comes back once through collect() with finish_reason "aborted", unless
        it had just finished."""
        ...

    async def load_weights(
        self, weights: WeightsRef, probes: Sequence[tuple[int, ...]]
    ) -> Attestation:
        """Load a version, forget the prefix cache, attest to what is loaded.

        Before, the replica drops what it runs and what nobody has collected, and ends the waits of
        `collect`: all of that belongs to an attempt that is over, and its caller may be dead.
        """
        ...

    async def stats(self) -> EngineStats:
        """A reading, without disturbing the generation."""
        ...
