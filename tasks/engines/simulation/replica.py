"""The simulated rollout replica: discrete events on whatever clock the event loop has
(`virtual_time`).

    submit ─▶ `decoding` ─▶ `batch` ─▶ `decoding` ─▶ `mailbox` ─▶ collect

Each replica has one timer, set for the next event of its batch. It holds no model: it reads a
weight file only to attest to it, and its responses (`writers`) do not depend on the weights.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from artifacts.fixed_fields import Fixed, Profile, with_profile
from artifacts.new_tokens import News
from artifacts.records import FinishReason, Request, Running, WeightsRef
from tasks.engines.base import (
    Attestation,
    EngineLost,
    EngineStats,
    Replica,
    ReplicaConfig,
)
from tasks.engines.mailbox import Mailbox
from tasks.engines.model_files import read_tokenizer
from tasks.engines.simulation.batch import DecodingBatch
from tasks.engines.simulation.decoding import Decoding, ResponseRecords
from tasks.engines.simulation.pace import Pace
from tasks.engines.simulation.writers import BlankWriter, ChainSumWriter, LengthModel, Writer

# numbers that differ from the defaults of `SimulatedEngineConfig`, by name of the profile
PROFILES: Mapping[str, Mapping[str, object]] = {"h800": {}}


class SimulatedEngineConfig(ReplicaConfig):
    """The speed and KV cache of a simulated replica; by default a 7B model on a large GPU."""

    kind: Literal["simulated"] = Field(
        "simulated", description="Chooses an engine that takes the time of one and holds no model."
    )
    max_model_len: int = Field(
        32_768, ge=2, description="Bound on prompt plus generated tokens of a response."
    )
    profile: Profile = Field(
        "h800",
        description=(
            "Speed, room and lengths of responses: h800 (a 7B model on one such GPU), a file of"
            " JSON or YAML, or the numbers themselves."
        ),
    )
    # speed and room of a replica, as `Pace` has them; the cache is that of each of its devices
    max_batch: Fixed[int] = 256
    step_s: Fixed[float] = 0.008
    step_s_per_sequence: Fixed[float] = 0.0001
    sequence_exponent: Fixed[float] = 1.0
    prefill_s_per_token: Fixed[float] = 5e-05
    kv_capacity_tokens: Fixed[int] = 400_000
    step_s_per_kv_token: Fixed[float] = 0.0
    weights_s: Fixed[float] = 0.0
    matrix_s_per_token: Fixed[float] = 0.0
    chunk_tokens: Fixed[int] = 0
    attention_share: Fixed[float] = 0.0
    kv_margin: Fixed[float] = 0.05
    shares_prompts: Fixed[bool] = False
    draft_tokens: Fixed[int] = 0
    draft_yield: Fixed[float] = 1.0
    # whether a request with the seed of an earlier one is answered alike, as real engines do;
    # off, to see what that is worth
    takes_seeds: Fixed[bool] = True
    lengths: Fixed[LengthModel] = LengthModel()  # how long responses that say nothing get
    responses: Literal["nothing", "chain_sums"] = Field(
        "nothing",
        description="What its responses say: nothing, or worked answers to the task chain_sum.",
    )
    wrong_share: Fixed[float] = 0.2  # probability that a step of such an answer is wrong
    ramble_share: Fixed[float] = 0.08  # share of such answers that go on past the last term

    @model_validator(mode="before")
    @classmethod
    def _take_profile(cls, values: Any) -> Any:  # Any: whatever is validated
        return with_profile(values, PROFILES, "h800")

    @model_validator(mode="after")
    def _check_drafts(self) -> Self:
        if self.draft_yield > 1 + self.draft_tokens:
            raise ValueError(
                "engine.profile.draft_yield must be at most one token more than draft_tokens, got"
                f" {self.draft_yield:g} with {self.draft_tokens}; lower it, or draft more"
            )
        return self

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit the KV cache of a replica, over all its devices."""
        return self.kv_capacity_tokens * self.tensor_parallel_size

    @property
    def pace(self) -> Pace:
        """The speed and KV cache of a replica, as `Pace`."""
        return Pace(**{each.name: getattr(self, each.name) for each in fields(Pace)})

    def writer(self, model_path: str) -> Writer:
        """The writer of the responses; responses with content are in the tokens of this model."""
        if self.responses == "nothing":
            return BlankWriter(self.lengths)
        return ChainSumWriter(self.wrong_share, self.ramble_share, read_tokenizer(model_path))

    def build_engine(
        self, model_path: str, name: str, core_ids: Sequence[int], seed: int
    ) -> SimulatedEngine:
        """Seed and cores are not used: noise is the requests', and nothing is computed."""
        return SimulatedEngine(
            name,
            self,
            writer=self.writer(model_path),
            epoch_s=time.time() - time.monotonic(),
        )


class SimulatedEngine(Replica):
    """An Engine whose responses take the time of `config` and have its writer's text."""

    def __init__(
        self,
        name: str,
        config: SimulatedEngineConfig,
        version: int = 0,
        writer: Writer | None = None,
        epoch_s: float = 0.0,
    ) -> None:
        """writer: needed where the writer of `config` depends on a model's tokenizer. epoch_s: Unix
        time at the zero of the event loop's clock, added to all reported times; 0 on a virtual
        clock."""
        self.name = name
        self._config = config
        self._version = version
        self._records = ResponseRecords(
            engine=name, writer=writer or config.writer(model_path=""), epoch_s=epoch_s
        )
        self._batch = DecodingBatch(config.pace, config.report_tokens)
        # what is in the batch, by response id: two attempts at one may meet here
        self._sequences = defaultdict[str, list[Decoding]](list)
        self._done = Mailbox[News]()
        self._drained = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False
        self._num_loads = 0

    async def submit(self, requests: Sequence[Request]) -> None:
        self._check_alive()
        self._advance()
        for request in requests:
            longest = len(request.prompt_tokens) + request.max_new_tokens
            room = min(self._config.max_model_len, self._config.kv_tokens)
            if longest > room:
                raise ValueError(
                    "a prompt and its longest response must fit max_model_len and the KV cache"
                    f" ({room} tokens), got {longest} tokens; raise engine.max_model_len and"
                    " engine.kv_capacity_tokens, or lower sampling.max_response_tokens"
                )
            noise = request.seed if self._config.takes_seeds else self._version
            sequence = self._records.begin(request, noise, self._now())
            self._sequences[request.response_id].append(sequence)
            self._batch.add(sequence)
        self._schedule()

    async def collect(self, wait_s: float) -> list[News]:
        self._check_alive()
        done = await self._done.take(wait_s)
        self._check_alive()
        return done

    async def abort(self, response_ids: Sequence[str]) -> None:
        self._check_alive()
        self._advance()
        for wanted in response_ids:
            for sequence in self._sequences.pop(wanted, ()):
                self._batch.remove(sequence)
                self._deliver(sequence, "aborted")
        if not response_ids:
            self._done.wake()
        self._schedule()

    async def load_weights(
        self,
        weights: WeightsRef,
        probes: Sequence[tuple[int, ...]],
        running: Running = Running.DROP,
    ) -> Attestation:
        """Raises ValueError, and goes on as before, when the weight version is missing."""
        prints = await _fingerprints(weights)
        self._check_alive()
        began_s = self._now()
        self._advance()
        if running is Running.DRAIN:
            await self._drain()
        if running is Running.DROP:
            self._batch.clear()
            self._sequences.clear()
            self._done.drop()
            self._num_loads += 1
            self._drained.set()
        for sequence in self._batch.sequences:
            sequence.spans = sequence.spans_with(self._version)
        if running is not Running.KEEP:
            self._batch.recompute()
        self._batch.begin_version()
        self._schedule()
        self._version = weights.version
        drained_s = self._now() - began_s
        return Attestation(
            version=self._version, fingerprints=prints, probe_logprobs=None, drained_s=drained_s
        )

    async def _drain(self) -> None:
        """Finish the begun sequences, begin no other. Raises EngineLost if a load drops them."""
        began = self._num_loads
        self._batch.holds_new = True
        while not self._batch.is_drained:
            self._drained.clear()
            await self._drained.wait()
            self._check_alive()
            if began != self._num_loads:
                raise EngineLost(f"{self.name} has loaded other weights meanwhile")

    async def stats(self) -> EngineStats:
        self._check_alive()
        self._advance()
        self._schedule()
        return EngineStats(
            engine=self.name,
            kv_usage_max=self._batch.kv_tokens_max / self._config.kv_tokens,
            kv_tokens=self._config.kv_tokens,
            progress={
                sequence.request.response_id: sequence.whole_tokens
                for sequence in self._batch.sequences
            },
            num_preemptions=self._batch.num_preemptions,
            tokens_generated=round(self._batch.tokens_generated),
        )

    async def sleep(self) -> None:
        """Do nothing: there is no GPU to release."""

    def close(self) -> None:
        self.fail()

    def fail(self) -> None:
        """Die: drop all requests; every call raises EngineLost from now on."""
        self._is_lost = True
        self._batch.clear()
        self._sequences.clear()
        self._done.drop()
        if self._timer is not None:
            self._timer.cancel()
        self._drained.set()

    def _advance(self) -> None:
        """Bring the batch up to the present time, deliver the responses that have ended meanwhile,
        and report new tokens of the others when a report is due."""
        for sequence in self._batch.advance(self._now()):
            attempts = self._sequences[sequence.request.response_id]
            attempts.remove(sequence)
            if not attempts:
                del self._sequences[sequence.request.response_id]
            self._deliver(sequence, sequence.reason)
        for sequence in self._batch.take_report():
            self._done.put(self._records.report(sequence, self._version, self._now()))

    def _schedule(self) -> None:
        """Admit waiting sequences, and set the timer for the next event."""
        self._batch.fill()
        if self._batch.holds_new and self._batch.is_drained:
            self._drained.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        delay_s = self._batch.seconds_to_event()
        if delay_s is not None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._advance()
        self._schedule()

    def _deliver(self, sequence: Decoding, reason: FinishReason) -> None:
        self._done.put(self._records.end(sequence, reason, self._version, self._now()))

    def _check_alive(self) -> None:
        if self._is_lost:
            raise EngineLost(f"{self.name} is gone")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _fingerprints(weights: WeightsRef) -> Mapping[str, int]:
    """The fingerprints of the version's file; empty for a version without a file."""
    if not weights.path:
        return {}
    from artifacts.weights import fingerprints  # torch takes seconds to import

    return await asyncio.to_thread(fingerprints, weights.path)
