"""The simulated rollout replica: discrete events on whatever clock the event loop has
(`virtual_time`).

Every running sequence gains one token per decode step; a step takes longer the more sequences it
decodes; a full KV cache preempts the sequence admitted last, which waits and is prefilled again.
Between two events (admission, end, overflow, abort) nothing changes, so one timer per replica
suffices and 128 replicas run in seconds. The same replica serves a whole run in a worker process,
on a real clock. It holds no model: it reads a weight version to say what it was given, and what
`writers` has it say does not depend on it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from artifacts.records import FinishReason, Generated, Request, WeightsRef
from tasks.engines.admission import extend_spans
from tasks.engines.base import Attestation, EngineLost, EngineStats, Replica, ReplicaConfig
from tasks.engines.model_files import read_tokenizer
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.writers import BlankWriter, ChainSumWriter, Writer

EPSILON = 1e-6  # tokens; float noise of a sum of steps
# of every token, nats: there is no distribution that it was drawn from, and a learner that has seen
# such answers gives them about as much
LOGPROB = -0.2


class SimulatedEngineConfig(ReplicaConfig):
    """The speed and room of a simulated replica; the defaults resemble a 7B model on one large
    GPU."""

    kind: Literal["simulated"] = Field(
        "simulated", description="Chooses an engine that takes the time of one and holds no model."
    )
    max_model_len: int = Field(
        32_768, ge=2, description="Bound on prompt plus generated tokens of a response."
    )
    max_batch: int = Field(256, ge=1, description="Sequences decoded at the same time.")
    step_s: float = Field(0.008, gt=0, description="Seconds of a decode step, whatever the batch.")
    step_s_per_sequence: float = Field(
        0.0001, ge=0, description="Seconds that each further sequence adds to a decode step."
    )
    prefill_s_per_token: float = Field(
        0.00005, ge=0, description="Seconds that prefilling one token holds up the batch."
    )
    kv_capacity_tokens: int = Field(
        400_000,
        ge=1,
        description="Tokens, prompts included, that fit the KV cache of each of its devices.",
    )
    takes_seeds: bool = Field(
        True,
        description=(
            "Whether a request with the seed of an earlier one is answered alike, as real engines"
            " do; off, to see what that is worth."
        ),
    )
    lengths: LengthModel = Field(
        default_factory=LengthModel, description="How long responses that say nothing get."
    )
    says: Literal["nothing", "chain_sums"] = Field(
        "nothing",
        description="What its responses say: nothing, or worked answers to the task chain_sum.",
    )
    wrong_share: float = Field(
        0.2, ge=0, le=1, description="Probability that a step of such an answer is wrong."
    )
    ramble_share: float = Field(
        0.08, ge=0, le=1, description="Share of such answers that go on past the last term."
    )

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit the KV cache of a replica."""
        return self.kv_capacity_tokens * self.tensor_parallel_size

    def writer(self, model_path: str) -> Writer:
        """Who writes the responses; what says something is in the tokens of this model."""
        if self.says == "nothing":
            return BlankWriter(self.lengths)
        return ChainSumWriter(self.wrong_share, self.ramble_share, read_tokenizer(model_path))

    def build_engine(
        self, model_path: str, name: str, core_ids: Sequence[int], seed: int
    ) -> SimulatedEngine:
        """Its noise is the requests' own, and it computes nothing: seed and cores are not
        needed."""
        return SimulatedEngine(
            name,
            self,
            writer=self.writer(model_path),
            epoch_s=time.time() - time.monotonic(),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class _Decoding:
    """A request inside the replica, running or waiting."""

    request: Request
    noise: int  # what its writer draws from
    target_tokens: int  # where it ends by itself or at its bound
    reason: FinishReason  # which of the two
    submitted_s: float
    num_tokens: float  # generated so far; fractional between two steps
    first_token_s: float | None = None

    @property
    def kv_tokens(self) -> float:
        return len(self.request.prompt_tokens) + self.num_tokens


class SimulatedEngine(Replica):
    """An Engine whose responses take the time of `config` and say what its writer writes."""

    def __init__(
        self,
        name: str,
        config: SimulatedEngineConfig,
        version: int = 0,
        writer: Writer | None = None,
        epoch_s: float = 0.0,
    ) -> None:
        """writer: the one of `config`, where it needs a model's tokenizer. epoch_s: the zero of the
        event loop's clock in the times that are handed out; on a virtual clock there is no
        other."""
        self.name = name
        self._config = config
        self._version = version
        self._writer = writer or config.writer(model_path="")
        self._epoch_s = epoch_s
        self._running: list[_Decoding] = []  # in the order of admission
        self._waiting: deque[_Decoding] = deque()
        self._done: list[Generated] = []
        self._arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._advanced_s = 0.0  # how far the simulation has come
        self._stall_s = 0.0  # prefill still to do before the batch decodes on
        self._is_lost = False
        self._num_loads = 0
        self._num_preemptions = 0
        self._kv_tokens_max = 0.0
        self._tokens_generated = 0.0

    async def submit(self, requests: Sequence[Request]) -> None:
        self._check_alive()
        self._advance()
        for request in requests:
            self._check_fits(request)
            noise = request.seed if self._config.takes_seeds else self._version
            length = self._writer.num_tokens(request, noise)
            self._waiting.append(
                _Decoding(
                    request=request,
                    noise=noise,
                    target_tokens=min(length, request.max_new_tokens),
                    reason="length" if length > request.max_new_tokens else "stop",
                    submitted_s=self._now(),
                    num_tokens=float(len(request.kept_tokens)),
                )
            )
        self._schedule()

    async def collect(self, wait_s: float) -> list[Generated]:
        self._check_alive()
        began = self._num_loads
        if not self._done:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), wait_s)
            except TimeoutError:
                return []
            self._check_alive()
        if began != self._num_loads:  # what is there now is for whoever asked since
            return []
        done, self._done = self._done, []
        return done

    async def abort(self, response_ids: Sequence[str]) -> None:
        self._check_alive()
        self._advance()
        wanted = set(response_ids)
        for sequence in [
            sequence
            for sequence in (*self._running, *self._waiting)
            if sequence.request.response_id in wanted
        ]:
            self._remove(sequence)
            self._hand_back(sequence, "aborted")
        self._schedule()

    async def load_weights(
        self, weights: WeightsRef, probes: Sequence[tuple[int, ...]]
    ) -> Attestation:
        """Raises ValueError, and goes on as before, when the version is not there."""
        prints = await _fingerprints(weights)
        self._check_alive()
        self._advance()
        self._running, self._waiting, self._done = [], deque(), []
        self._num_loads += 1
        self._arrived.set()
        self._schedule()
        self._version = weights.version
        self._num_preemptions, self._kv_tokens_max = 0, 0.0
        return Attestation(version=self._version, fingerprints=prints, probe_logprobs=None)

    async def stats(self) -> EngineStats:
        self._check_alive()
        self._advance()
        self._schedule()
        return EngineStats(
            engine=self.name,
            kv_usage_max=self._kv_tokens_max / self._config.kv_tokens,
            kv_tokens=self._config.kv_tokens,
            progress={
                sequence.request.response_id: int(sequence.num_tokens + EPSILON)
                for sequence in (*self._running, *self._waiting)
            },
            num_preemptions=self._num_preemptions,
            tokens_generated=round(self._tokens_generated),
        )

    async def rest(self) -> None:
        """There is no GPU to give back."""

    def close(self) -> None:
        self.fail()

    def fail(self) -> None:
        """Die: everything in it is gone and every call raises EngineLost from now on."""
        self._is_lost = True
        self._running, self._waiting, self._done = [], deque(), []
        if self._timer is not None:
            self._timer.cancel()
        self._arrived.set()

    # --- the simulation: _advance up to now, change something, _schedule the next event ---

    def _advance(self) -> None:
        """Account for the time since the last event: first the prefill, then decode steps of the
        batch as it was."""
        now_s = self._now()
        elapsed_s = now_s - self._advanced_s
        self._advanced_s = now_s
        if not self._running:
            return
        stalled_s = min(elapsed_s, self._stall_s)
        self._stall_s -= stalled_s
        steps = (elapsed_s - stalled_s) / self._step_s()
        for sequence in self._running:
            gained = min(steps, sequence.target_tokens - sequence.num_tokens)
            sequence.num_tokens += gained
            self._tokens_generated += gained
            if sequence.first_token_s is None and gained > 0:
                sequence.first_token_s = (
                    self._now() - (steps - 1) * self._step_s() if steps > 1 else self._now()
                )
        self._kv_tokens_max = max(self._kv_tokens_max, self._kv_tokens())
        for sequence in [
            sequence
            for sequence in self._running
            if sequence.num_tokens >= sequence.target_tokens - EPSILON
        ]:
            self._remove(sequence)
            self._hand_back(sequence, sequence.reason)

    def _schedule(self) -> None:
        """Make room, fill it, and set the timer for whatever happens next."""
        while len(self._running) > 1 and self._kv_tokens() >= self._config.kv_tokens - EPSILON:
            self._num_preemptions += 1
            self._waiting.appendleft(self._running.pop())
        while self._waiting and self._has_room(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._stall_s += self._config.prefill_s_per_token * sequence.kv_tokens
            self._running.append(sequence)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running:
            delay_s = self._stall_s + self._steps_to_event() * self._step_s()
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._advance()
        self._schedule()

    def _steps_to_event(self) -> float:
        """Decode steps until a sequence ends or the KV cache is full."""
        to_end = min(sequence.target_tokens - sequence.num_tokens for sequence in self._running)
        if len(self._running) == 1:
            return to_end
        to_overflow = (self._config.kv_tokens - self._kv_tokens()) / len(self._running)
        return min(to_end, max(to_overflow, 1.0))

    def _has_room(self, sequence: _Decoding) -> bool:
        """With a margin to grow into, so that a preempted sequence does not come back only to be
        preempted again."""
        if not self._running:
            return True
        margin = self._config.kv_tokens / 20
        fits = self._kv_tokens() + sequence.kv_tokens + margin <= self._config.kv_tokens
        return fits and len(self._running) < self._config.max_batch

    def _step_s(self) -> float:
        return self._config.step_s + self._config.step_s_per_sequence * (len(self._running) - 1)

    def _kv_tokens(self) -> float:
        return sum(sequence.kv_tokens for sequence in self._running)

    def _remove(self, sequence: _Decoding) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def _hand_back(self, sequence: _Decoding, reason: FinishReason) -> None:
        request = sequence.request
        num_kept = len(request.kept_tokens)
        num_tokens = int(sequence.num_tokens + EPSILON)
        written = self._writer.tokens(request, sequence.noise, num_tokens)
        tokens = request.kept_tokens + written[num_kept:]
        first_token_s = sequence.first_token_s
        self._done.append(
            Generated(
                prompt_id=request.prompt_id,
                index=request.index,
                token_ids=tokens,
                logprobs=request.kept_logprobs + (LOGPROB,) * (num_tokens - num_kept),
                versions=extend_spans(request.kept_versions, self._version, num_tokens - num_kept),
                finish_reason=reason,
                text=self._writer.text(tokens),
                engine=self.name,
                submitted_s=self._epoch_s + sequence.submitted_s,
                first_token_s=self._epoch_s
                + (first_token_s if first_token_s is not None else self._now()),
                finished_s=self._epoch_s + self._now(),
                attempt=request.attempt,
            )
        )
        self._arrived.set()

    def _check_fits(self, request: Request) -> None:
        longest = len(request.prompt_tokens) + request.max_new_tokens
        room = min(self._config.max_model_len, self._config.kv_tokens)
        if longest > room:
            raise ValueError(
                "a prompt and its longest response must fit max_model_len and the KV cache"
                f" ({room} tokens), got {longest} tokens; raise engine.max_model_len and"
                " engine.kv_capacity_tokens, or lower sampling.max_response_tokens"
            )

    def _check_alive(self) -> None:
        if self._is_lost:
            raise EngineLost(f"{self.name} is gone")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _fingerprints(weights: WeightsRef) -> Mapping[str, int]:
    """What the version's file holds; a version without a file, of a round by itself, holds
    nothing."""
    if not weights.path:
        return {}
    from artifacts.weights import fingerprints  # torch takes seconds to import

    return await asyncio.to_thread(fingerprints, weights.path)
