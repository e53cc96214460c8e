"""vLLM in this process, as the stepping thread sees it: add, step, abort, load, attest. One thread,
no asyncio, no deadlines.

Everything that touches vLLM's internals is here, and vLLM is imported only when a core is built
(`engine.build_core`), after pinning. What is relied on, in vLLM 0.32: `LLMEngine` with its engine
core in process and the batches it has computed ahead, its output processor's request states
(partial tokens at an abort) and its scheduler (counts, KV usage, free blocks, preemptions, the
queues of what runs and of what waits; a request that runs and is not scheduled in a step goes on in
a later one).

A response is one vLLM request (n = 1) with FINAL_ONLY output, token ids in and out, no
detokenisation on the way: a step costs no Python of ours per token. Log-probabilities are those of
the distribution that was sampled from (`processed_logprobs`: after temperature and top_p). At
temperature 1 and top_p 1 they are the model's own; for greedy decoding (temperature 0) too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Any

from artifacts.records import FinishReason, Generated, Request, Running, VersionSpan, WeightsRef
from tasks.engines.admission import check_request, extend_spans
from tasks.engines.base import Attestation, EngineStats
from tasks.engines.vllm.draws import own_draws
from tasks.engines.vllm.siblings import Siblings, Waiting

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

_PROBE = "probe"


@dataclass(slots=True, kw_only=True)
class _Live:
    """A request inside vLLM, with vLLM's own two records of it."""

    request: Request
    internal_id: str
    state: Any  # vllm RequestState: tokens and log-probabilities so far
    scheduled: Any  # vllm Request: preemptions
    submitted_s: float
    spans: tuple[VersionSpan, ...]  # of the tokens up to the last load
    num_preemptions: int = 0  # up to the last load
    first_token_s: float = 0.0


class VllmCore:
    """One LLMEngine and the responses that are in it."""

    def __init__(
        self, engine: LLMEngine, tokenizer: Any, stop_ids: tuple[int, ...], name: str, version: int
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer  # Any: transformers' tokenizers have no useful common type
        self._stop_ids = stop_ids
        self._name = name
        self._version = version
        self._live: dict[str, _Live] = {}
        self._without_token: list[_Live] = []
        self._num_tokens = 0
        self._num_preemptions = 0
        self._kv_usage_max = 0.0
        self._asleep = False
        self._seed_arguments = own_draws(engine)
        self._siblings = Siblings(self._scheduler)
        self._holds_new = False
        self._held: list[Waiting] = []  # until the next load

    @property
    def busy(self) -> bool:
        """Whether a step would do something; what waits for the next load does nothing."""
        return bool(self._live or self._siblings.waiting)

    @property
    def prefilling(self) -> bool:
        """Whether some response has no token yet."""
        return bool(self._without_token or self._siblings.waiting)

    def add(self, requests: Sequence[Request]) -> None:
        """Take all of them, or none when one is unfit (ValueError). The first to a prompt enters
        before the next step, its siblings when it has computed the prompt."""
        self._check(requests)
        self._wake()
        now_s = time.time()
        for request in requests:
            self._take_in(request, now_s)

    def step(self) -> list[Generated]:
        """One step of the batch; the responses that it finished."""
        outputs = self._engine.step()
        self._note_kv_usage()
        self._note_first_tokens()
        self._admit(self._siblings.take_ready())
        return self._finished(outputs)

    def settle(self) -> list[Generated]:
        """Take in what vLLM has computed ahead of the last step, as it does on GPUs, so that none
        of it is taken for a later version's; the responses that finished in it."""
        ahead = self._engine.engine_core.engine_core.batch_queue
        done: list[Generated] = []
        with self._alone():
            while ahead:
                done += self._finished(self._engine.step())
        return done

    def hold_new(self) -> None:
        """Begin nothing until the next load; what is not begun yet waits for it, too."""
        self._holds_new = True
        begun = {request.request_id for request in self._scheduler.running}
        for live in [*self._live.values()]:
            if not _new_tokens(live) and live.scheduled.request_id not in begun:
                self._engine.abort_request([live.internal_id], internal=True)
                self._forget(live)
                self._held.append(Waiting(request=live.request, submitted_s=live.submitted_s))
        self._held += self._siblings.take_all()

    def abort(self, response_ids: Sequence[str]) -> list[Generated]:
        """The partial responses, in the order asked; ids that are not running (any more) are
        skipped."""
        wanted = frozenset(response_ids)
        held = [each for each in self._held if each.request.response_id in wanted]
        self._held = [each for each in self._held if each not in held]
        self._admit([*held, *self._siblings.take(wanted)])
        running = [response_id for response_id in response_ids if response_id in self._live]
        self._engine.abort_request(
            [self._live[response_id].internal_id for response_id in running], internal=True
        )
        partial = [self._finish(response_id, "aborted") for response_id in running]
        self._admit(self._siblings.take_ready())
        return partial

    def load(
        self,
        weights: WeightsRef,
        probes: Sequence[tuple[int, ...]],
        running: Running = Running.DROP,
    ) -> Attestation:
        """Load and attest, with what runs as `Engine.load_weights` says; before it drains, nothing
        must run any more."""
        self._check_probes(probes)
        self._wake()
        try:
            return self._load(weights, probes, running)
        finally:
            self._holds_new = False
            held, self._held = self._held, []
            for waiting in held:
                self._take_in(waiting.request, waiting.submitted_s)

    def _load(
        self, weights: WeightsRef, probes: Sequence[tuple[int, ...]], running: Running
    ) -> Attestation:
        keeps = running is Running.KEEP
        if running is Running.DROP:
            self.abort([*self._live, *self._waiting_names()])
        if keeps:
            self.hold_new()
        for live in self._live.values():
            live.spans = self._spans(live)
        prints = self._engine.collective_rpc("load_version", args=(weights.path, weights.version))
        self._version = weights.version
        if keeps:
            self._siblings.salt = str(weights.version)
        else:
            self._engine.reset_prefix_cache(reset_running_requests=True)
        self._num_preemptions, self._kv_usage_max = 0, 0.0
        for live in self._live.values():
            live.num_preemptions = live.scheduled.num_preemptions
        self._make_room(probes)
        with self._alone():
            logprobs = self._prompt_logprobs(probes)
            if not (keeps or self._engine.reset_prefix_cache()):
                raise RuntimeError("a prefix cache that nothing uses could not be emptied")
        return Attestation(
            version=weights.version, fingerprints=_agreed(prints), probe_logprobs=logprobs
        )

    def warm_up(self) -> None:
        """Run every kind of step once: what vLLM compiles on first use must not fall into a round
        or a load's deadline."""
        self._prompt_logprobs([(0,) * 4])
        sampled = Request(
            prompt_id=_PROBE,
            index=0,
            prompt_tokens=(0,) * 4,
            max_new_tokens=3,
            temperature=1.0,
            top_p=1.0,
            seed=0,
        )
        self.add([sampled])
        while self.busy:
            self.step()
        self._num_tokens, self._kv_usage_max = 0, 0.0
        self._engine.reset_prefix_cache()

    def stats(self) -> EngineStats:
        return EngineStats(
            engine=self._name,
            kv_usage_max=self._kv_usage_max,
            kv_tokens=int(self._engine.vllm_config.cache_config.kv_cache_size_tokens or 0),
            progress=self._progress(),
            num_preemptions=self._num_preemptions
            + sum(_num_preemptions(live) for live in self._live.values()),
            tokens_generated=self._num_tokens
            + sum(len(_new_tokens(live)) for live in self._live.values()),
        )

    def _progress(self) -> dict[str, int]:
        """Tokens of each response so far, the kept ones included."""
        begun = {
            name: len(live.request.kept_tokens) + len(_new_tokens(live))
            for name, live in self._live.items()
        }
        waiting = (each.request for each in (*self._siblings.waiting, *self._held))
        return begun | {request.response_id: len(request.kept_tokens) for request in waiting}

    def rest(self) -> None:
        """Give the GPU's memory back until the next load or request; one at work goes on with it.

        The weights wait in host memory, the KV cache is dropped.
        """
        if not (self.busy or self._asleep):
            self._engine.sleep(level=1)
            self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def close(self) -> None:
        self._live.clear()
        self._without_token.clear()
        self._held.clear()
        self._siblings.take_all()
        self._engine.engine_core.shutdown()

    # --- into vLLM
    # ----------------------------------------------------------------------------------------------

    @property
    def _scheduler(self) -> Any:  # Any: vLLM's scheduler, an internal that only this module touches
        return self._engine.engine_core.engine_core.scheduler

    def _begin(self, request: Request, submitted_s: float) -> None:
        """Have vLLM take the request."""
        tokens = [*request.prompt_tokens, *request.kept_tokens]
        internal_id = self._enter(request.response_id, tokens, self._sampling(request))
        live = _Live(
            request=request,
            internal_id=internal_id,
            state=self._engine.output_processor.request_states[internal_id],
            scheduled=self._scheduler.requests[internal_id],
            submitted_s=submitted_s,
            spans=request.kept_versions,
        )
        self._live[request.response_id] = live
        self._without_token.append(live)
        self._siblings.enter(live.scheduled)

    def _take_in(self, request: Request, submitted_s: float) -> None:
        """Begin it, or have it wait for the next load or for a sibling."""
        if self._holds_new:
            self._held.append(Waiting(request=request, submitted_s=submitted_s))
        elif not self._siblings.hold(request, submitted_s):
            self._begin(request, submitted_s)

    def _admit(self, held: Sequence[Waiting]) -> None:
        """Begin what has waited."""
        for waiting in held:
            self._begin(waiting.request, waiting.submitted_s)

    def _waiting_names(self) -> list[str]:
        return [each.request.response_id for each in (*self._siblings.waiting, *self._held)]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Have vLLM schedule nothing of what runs and waits in it, blocks and tokens staying as
        they are, so that probes are alone."""
        scheduler = self._scheduler
        running, waiting = list(scheduler.running), list(scheduler.waiting)
        scheduler.running = []
        scheduler.waiting.clear()
        yield
        scheduler.running = [request for request in running if not request.is_finished()]
        scheduler.waiting.extend(waiting)

    def _make_room(self, probes: Sequence[tuple[int, ...]]) -> None:
        """Preempt the last of what runs until there are blocks for the probes beside the rest."""
        scheduler, block_size = self._scheduler, self._engine.vllm_config.cache_config.block_size
        num_needed = sum(len(probe) // block_size + 1 for probe in probes)
        blocks = scheduler.kv_cache_manager.block_pool
        while scheduler.running and blocks.get_num_free_blocks() < num_needed:
            scheduler._preempt_request(scheduler.running.pop(), time.monotonic())

    def _enter(self, request_id: str, tokens: list[int], params: SamplingParams) -> str:
        from vllm.inputs.engine import tokens_input

        asked = tokens_input(tokens, cache_salt=self._siblings.salt)
        internal_id: str = self._engine.add_request(request_id, asked, params)
        return internal_id

    def _sampling(self, request: Request) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=request.max_new_tokens - len(request.kept_tokens),
            temperature=request.temperature,
            top_p=request.top_p,
            **self._seed_arguments(request.seed),
            stop_token_ids=list(self._stop_ids),
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _check(self, requests: Sequence[Request]) -> None:
        seen = {*self._live, *self._waiting_names()}
        limit, vocabulary = (
            self._engine.model_config.max_model_len,
            self._engine.model_config.get_vocab_size(),
        )
        for request in requests:
            check_request(request, limit, vocabulary)
            if request.response_id in seen:
                raise ValueError(
                    f"a response may be submitted once at a time, got {request.response_id} twice;"
                    " abort it first"
                )
            seen.add(request.response_id)

    def _check_probes(self, probes: Sequence[tuple[int, ...]]) -> None:
        limit = self._engine.model_config.max_model_len
        for probe in probes:
            if not 2 <= len(probe) < limit:
                raise ValueError(
                    f"a probe needs 2 to {limit - 1} tokens, got {len(probe)}; choose another probe"
                    " prompt"
                )

    def _prompt_logprobs(self, probes: Sequence[tuple[int, ...]]) -> tuple[tuple[float, ...], ...]:
        """Log-probabilities of the probes' own tokens after their first, all probes in one batch,
        nothing sampled at random."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=1, temperature=0.0, prompt_logprobs=0, flat_logprobs=True, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY
        )  # fmt: skip
        for index, probe in enumerate(probes):
            self._enter(f"{_PROBE}:{index}", list(probe), params)
        found: dict[str, tuple[float, ...]] = {}
        while len(found) < len(probes):
            found |= {
                output.request_id: tuple(output.prompt_logprobs.logprobs)
                for output in self._engine.step()
            }
        return tuple(found[f"{_PROBE}:{index}"] for index in range(len(probes)))

    # --- out of vLLM
    # ----------------------------------------------------------------------------------------------

    def _note_kv_usage(self) -> None:
        """After a step, so without the blocks of what ended in it; where the cache runs full, that
        makes no difference."""
        self._kv_usage_max = max(self._kv_usage_max, float(self._scheduler.get_kv_cache_usage()))

    def _note_first_tokens(self) -> None:
        if not self._without_token:
            return
        now_s = time.time()
        waiting = []
        for live in self._without_token:
            if live.state.is_prefilling:
                waiting.append(live)
            else:
                live.first_token_s = now_s
        self._without_token = waiting

    def _spans(self, live: _Live) -> tuple[VersionSpan, ...]:
        """The versions of its tokens, those since the last load being of the present one."""
        num_tokens = len(live.request.kept_tokens) + len(_new_tokens(live))
        num_closed = sum(span.num_tokens for span in live.spans)
        return extend_spans(live.spans, self._version, num_tokens - num_closed)

    def _finished(self, outputs: Sequence[Any]) -> list[Generated]:  # Any: vLLM's outputs
        """The responses that ended in a step."""
        return [
            self._finish(output.request_id, output.outputs[0].finish_reason)
            for output in outputs
            if output.finished
        ]

    def _forget(self, live: _Live) -> None:
        """vLLM has it no longer."""
        del self._live[live.request.response_id]
        self._siblings.leave(live.scheduled)
        if live in self._without_token:
            self._without_token.remove(live)

    def _finish(self, response_id: str, reason: FinishReason) -> Generated:
        live = self._live[response_id]
        self._forget(live)
        now_s = time.time()
        request, new = live.request, _new_tokens(live)
        self._num_tokens += len(new)
        self._num_preemptions += _num_preemptions(live)
        tokens = (*request.kept_tokens, *new)
        return Generated(
            prompt_id=request.prompt_id,
            index=request.index,
            token_ids=tokens,
            logprobs=(*request.kept_logprobs, *live.state.logprobs_processor.logprobs.logprobs),
            versions=self._spans(live),
            finish_reason=reason,
            text=self._tokenizer.decode(tokens, skip_special_tokens=True),
            engine=self._name,
            submitted_s=live.submitted_s,
            first_token_s=live.first_token_s or now_s,
            finished_s=now_s,
            attempt=request.attempt,
        )


def _num_preemptions(live: _Live) -> int:
    """Since the last load."""
    return int(live.scheduled.num_preemptions) - live.num_preemptions


def _new_tokens(live: _Live) -> Sequence[int]:
    tokens: Sequence[int] = live.state.detokenizer.output_token_ids
    return tokens


def _agreed(prints: Sequence[dict[str, int]]) -> dict[str, int]:
    """One fingerprint per tensor over all ranks; ranks that differ give one that is nobody's, so
    that the gate sees it."""
    return {name: reduce(xor, {rank[name] for rank in prints}) for name in prints[0]}
