"""The Engine seam: what a rollout replica can do, however it generates.

    submit(requests) ... collect() -> finished responses, a few at a time, and new tokens of others
    ... abort(ids) -> partial responses come by collect()

Only `registry` lists the implementations: no other code depends on the kind of an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import Field, field_validator

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed
from artifacts.models.size import ModelSize
from artifacts.new_tokens import News
from artifacts.records import Request, Running, ShownPicture, WeightsRef

# longest wait for what runs to finish before a load; it runs at most to its bound of tokens, and a
# replica that hangs or dies meanwhile is found by its other calls
DRAIN_S = 3600.0


class EngineLost(RuntimeError):
    """The replica died or does not answer; its requests must be launched on another replica."""


class TransferLost(EngineLost):
    """The other side of a transfer died or is late; the message names the missing. The engine lives
    on, without a version that it could sample from, and loads the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The counters of a replica at one moment: KV cache, progress, preemptions, tokens."""

    engine: str  # name of the replica
    kv_usage_max: float  # largest share of the KV cache in use since the last load, 0..1
    kv_tokens: int  # tokens that fit the KV cache
    progress: Mapping[str, int]  # by response id: all tokens after the prompt so far
    num_preemptions: int  # since the replica loaded its weights
    tokens_generated: int  # since the replica started


class PicturedProbe(tuple[int, ...]):
    """The token ids of a probe that shows pictures."""

    pictures: tuple[ShownPicture, ...]

    @classmethod
    def of(cls, token_ids: Sequence[int], pictures: Sequence[ShownPicture]) -> PicturedProbe:
        probe = cls(token_ids)
        probe.pictures = tuple(pictures)
        return probe


def pictures_of(probe: tuple[int, ...]) -> tuple[ShownPicture, ...]:
    """The pictures that a probe shows."""
    return probe.pictures if isinstance(probe, PicturedProbe) else ()


Probes = tuple[tuple[int, ...], ...]  # fixed token sequences of the weight check
Probed = tuple[tuple[float, ...], ...]  # log-probability of each token after a probe's first, nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """The weights that an engine, or the learner, holds; the weight check compares the two."""

    version: int  # the weight version that it was asked to load
    fingerprints: Mapping[str, int]  # exact checksum of every tensor, by the checkpoint's name
    # None from an engine that computes none, whose tensors alone can be compared; of several
    # adapters those of the first, then those of the second ...
    probe_logprobs: Probed | None
    # the same without the adapter, where the version is one; None where it is not known
    base_logprobs: Probed | None = None
    adapters: tuple[str, ...] = ("",)  # their names, in that order
    drained_s: float = 0.0  # in which running requests finished before the load
    # the fingerprint of each rank of tensor parallelism, of tensors about which they differ
    of_ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """The room that an engine makes for the adapter with which it generates."""

    rank: int  # of its matrices
    scale: float  # the factor of their product
    modules: tuple[str, ...]  # which layers it may change: the last parts of their names
    names: tuple[str, ...] = ("",)  # of several adapters over one base; one has no name


class Engine(Protocol):
    """One rollout replica. Every call has a deadline and raises EngineLost when it is gone."""

    name: str

    async def submit(self, requests: Sequence[Request]) -> None:
        """Queue the requests, in the order given."""

    async def collect(self, wait_s: float) -> list[News]:
        """Return the responses that finished or were aborted since the last call and, from an
        engine that reports tokens (`report_tokens`), the new tokens of running ones. Waits up to
        wait_s for the first; the list is empty if none came."""

    async def abort(self, response_ids: Sequence[str]) -> None:
        """Stop these requests. Each partial response comes once through collect() with
        finish_reason "aborted", unless the response had just finished. Without ids, only ends the
        waits of `collect`."""

    async def load_weights(
        self,
        weights: WeightsRef,
        probes: Sequence[tuple[int, ...]],
        running: Running = Running.DROP,
    ) -> Attestation:
        """Load a weight version and attest to the tensors that are loaded. Requests submitted later
        never use KV cache that older weights computed.

        `running` says what happens to the running requests. DROP forgets them and ends the waits of
        `collect`: the attempt that submitted them is over, and its caller may be dead. INTERRUPT
        continues them with the new version from their next token on, under the same noise, as an
        engine that always had the new version would. KEEP does the same, but keeps the KV cache
        that older weights computed of their earlier tokens. DRAIN lets them finish on the old
        version first; requests without a token by then, and those submitted meanwhile, wait for the
        new one. A load with DROP ends a drain, whose call then raises EngineLost.
        """

    async def stats(self) -> EngineStats:
        """Return the replica's counters, without disturbing its generation."""


class Replica(Engine, Protocol):
    """An engine as the process that holds it sees it: it can also sleep, and be closed."""

    async def sleep(self) -> None:
        """Release the GPU's memory, if it holds any, until the next load or request."""

    def close(self) -> None:
        """Free the device. Pending and later calls raise EngineLost."""


class ReplicaConfig(FrozenConfig):
    """The settings that every kind of engine has, for callers that do not know the kind."""

    max_model_len: int = Field(
        default=1024, ge=2, description="Bound on prompt plus generated tokens of a response."
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, description="Devices that hold this replica together."
    )
    report_tokens: int = Field(
        default=0,
        ge=0,
        description=(
            "Decode steps after which an engine hands over the new tokens of all that it generates:"
            " the most that a response loses with its engine. 0 hands over whole responses alone."
        ),
    )
    # what a run's weight versions are, if not the model's weights: from `learner.lora`
    adapter: Fixed[AdapterShape | None] = None
    # folder or URL of the pictures that prompts show; empty for a model of text alone
    pictures: Fixed[str] = ""
    # whether responses say which experts computed them: from `learner.router_replay`
    records_routes: Fixed[bool] = False

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that take long to import and that only processes with a replica need."""
        return ()

    @property
    def sleeps(self) -> bool:
        """True if a replica releases its GPU memory for the training between rollouts."""
        return False

    @property
    def splits_heads(self) -> bool:
        """True if the devices of a replica share out the model's attention heads."""
        return False

    @property
    def takes_offers(self) -> bool:
        """True if a replica can load weights that have no file (`tasks.engines.transports`)."""
        return False

    @property
    def gpu_share(self) -> float:
        """Share of a GPU's memory that a replica takes."""
        return 0.0

    def least_gpu_bytes(self, size: ModelSize) -> int:
        """Bytes of each GPU's memory with which a replica of such a model starts, at least."""
        return 0

    def explain_steps(self, on_cpu: bool) -> str:
        """How a replica runs its decode steps on such a device; empty if it has none."""
        return ""

    def route_obstacle(self, model: Any, on_cpu: bool) -> str:  # Any: as transformers has it
        """Why replicas cannot tell which experts computed a token; empty if they can."""
        return f"engines of kind {getattr(self, 'kind', 'custom')} record no routes"

    def check_model(self, model: Any, on_cpu: bool) -> None:  # Any: as transformers has it
        """Raises ValueError if replicas with these settings cannot run such a model."""

    def build_engine(
        self, model_path: str, name: str, core_ids: Sequence[int], seed: int
    ) -> Replica:
        """Build a replica in this process and return it when it is ready. core_ids: CPU cores to
        pin to; empty for any core that the process may use."""
        raise NotImplementedError


def check_room(request: Request, max_model_len: int) -> None:
    """Raises ValueError when prompt and longest response do not fit the engine's context."""
    name, length = request.response_id, len(request.prompt_tokens)
    if length < 1 or length + request.max_new_tokens > max_model_len:
        raise ValueError(
            f"prompt and max_new_tokens must fit max_model_len {max_model_len}, {name} has {length}"
            f" + {request.max_new_tokens}; raise the engine's max_model_len or lower max_new_tokens"
        )


def check_request(request: Request, max_model_len: int, vocabulary: int) -> None:
    """Raises ValueError when the request cannot be generated exactly as given."""
    check_room(request, max_model_len)
    name, num_kept = request.response_id, len(request.kept_tokens)
    if num_kept >= request.max_new_tokens:
        raise ValueError(
            f"max_new_tokens must exceed the kept tokens, {name} has {request.max_new_tokens} and"
            f" {num_kept}; do not resume it"
        )
    if num_kept != len(request.kept_logprobs) or num_kept != sum(
        span.num_tokens for span in request.kept_versions
    ):
        raise ValueError(
            f"kept tokens need a log-probability and a version each, {name} keeps {num_kept}; take"
            " all three from one Generated"
        )
    tokens = (*request.prompt_tokens, *request.kept_tokens)
    if any(each.begin + each.num_tokens > len(request.prompt_tokens) for each in request.pictures):
        raise ValueError(
            f"pictures must lie within the prompt, {name} has {request.pictures} in"
            f" {len(request.prompt_tokens)} tokens; make the prompt from its row again"
        )
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        raise ValueError(
            f"token ids must be in 0..{vocabulary - 1}, {name} has {min(tokens)}..{max(tokens)};"
            " use the model's tokenizer"
        )


async def load_all(
    engines: Sequence[Engine],
    weights: WeightsRef,
    probes: Sequence[tuple[int, ...]],
    running: Running = Running.DROP,
) -> dict[str, Attestation]:
    """Load a weight version into every engine; returns the attestations by engine name."""
    calls = (engine.load_weights(weights, probes, running) for engine in engines)
    attested = await asyncio.gather(*calls)
    return {engine.name: held for engine, held in zip(engines, attested, strict=True)}


LEAST_TEMPERATURE = 0.01  # vLLM takes this one for any that is lower and not 0


class SamplingConfig(FrozenConfig):
    """The distribution that rollouts are drawn from; the learner's temperature must be the same."""

    temperature: float = Field(
        1.0,
        ge=0,
        description="Divides the logits; 0 is greedy and gives a group nothing to compare.",
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "Nucleus bound; a run needs 1, because the learner scores the whole distribution."
        ),
    )
    max_response_tokens: int = Field(
        256, ge=1, description="Bound on the generated tokens of a response."
    )

    @field_validator("temperature")
    @classmethod
    def _is_sampled_at(cls, temperature: float) -> float:
        if 0 < temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"temperature must be 0 or at least {LEAST_TEMPERATURE:g}, which engines take for"
                f" any between, got {temperature:g}; raise it"
            )
        return temperature
