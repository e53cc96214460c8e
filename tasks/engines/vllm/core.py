"""vLLM in this process, as the stepping thread sees it: add, step, abort, load, attest. One thread,
no asyncio, no deadlines.

    submit ─▶ add ─▶ (wait for a sibling, or for a load) ─▶ live ─▶ step ... step ─▶ Generated

A response is one vLLM request. Relied on here, in vLLM 0.32: `LLMEngine` with its engine core in
process and the batches that it has computed ahead, and its scheduler (KV usage, the list of running
requests; a running request that is not scheduled in a step goes on in a later one).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from artifacts.new_tokens import News, NewTokens
from artifacts.records import FinishReason, Generated, Request, Running, WeightsRef
from tasks.engines.base import (
    AdapterShape,
    Attestation,
    EngineStats,
    Probed,
    Probes,
    check_request,
)
from tasks.engines.chat_tokens import ChatTokens
from tasks.engines.vllm.adapter_slot import slot_requests
from tasks.engines.vllm.decode_steps import DecodeSteps
from tasks.engines.vllm.live import Gauges, Live
from tasks.engines.vllm.llm_engine import (
    PROBE,
    Entry,
    agreed,
    alone,
    check_probes,
    disputed,
    enter,
    make_room,
    on_cpu,
    prompt_logprobs,
    response_params,
)
from tasks.engines.vllm.picture_inputs import PictureInputs
from tasks.engines.vllm.routes import RouteReader
from tasks.engines.vllm.siblings import Siblings, Waiting
from tasks.engines.vllm.worker_patches import own_draws

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


class VllmCore:
    """One LLMEngine and the responses that it generates, of which it leaves the text empty."""

    def __init__(
        self,
        engine: LLMEngine,
        tokenizer: Any,
        stop_ids: tuple[int, ...],
        name: str,
        version: int,
        report_tokens: int = 0,
        adapter: AdapterShape | None = None,
        pictures: PictureInputs | None = None,
        records_routes: bool = False,
    ) -> None:
        """report_tokens: steps between two reports of new tokens; 0 for no reports. adapter: what
        weight versions are, if not the model's weights. pictures: of a model that takes them.
        records_routes: whether responses say which experts computed them."""
        self._engine = engine
        # Any: transformers' tokenizers have no useful common type
        self.decode = ChatTokens(tokenizer, stop_ids).decode  # for callers: no step waits for text
        self._stop_ids = stop_ids
        self._name = name
        self._version = version
        self._live: dict[str, Live] = {}
        self._without_token: list[Live] = []
        self._gauges = Gauges()
        self._asleep = False
        self._seed_arguments = own_draws(engine)
        self._siblings = Siblings(self._scheduler)
        self._steps = DecodeSteps(self._scheduler)
        self._routes = RouteReader(engine) if records_routes else None
        self._holds_new = False
        self._held: list[Waiting] = []  # until the next load
        self._report_tokens = report_tokens
        self._adapter_shape = adapter
        # by the adapter's name; Any: vLLM's LoRARequest, none before the first version
        self._adapters: dict[str, Any] = {}
        self._pictures = pictures
        # probes, and their log-probabilities without an adapter
        self._of_base: tuple[Probes, Probed] | None = None
        self._num_unreported = 0  # steps since the last report

    @property
    def busy(self) -> bool:
        """True if a step would do something; requests that wait for the next load do not count."""
        return bool(self._live or self._siblings.waiting)

    @property
    def prefilling(self) -> bool:
        """True if a response has no token yet."""
        return bool(self._without_token or self._siblings.waiting)

    def add(self, requests: Sequence[Request]) -> None:
        """Take all of the requests, or none when one is unfit (ValueError). The first request for a
        prompt enters before the next step; its siblings enter when it has computed the prompt."""
        self._check(requests)
        self._wake()
        now_s = time.time()
        for request in requests:
            self._take_in(request, now_s)

    def step(self) -> list[News]:
        """Make one step of the batch. Returns the responses that it finished and, when a report is
        due, the new tokens of all others."""
        outputs = self._engine.step()
        self._gauges.note_step(float(self._scheduler.get_kv_cache_usage()))
        self._note_first_tokens()
        self._admit(self._siblings.take_ready())
        return [*self._finished(outputs), *self._report()]

    def settle(self) -> list[Generated]:
        """Process what vLLM has computed ahead of the last step, as it does on GPUs, so that these
        tokens are not attributed to a later version. Returns the responses that finished in it."""
        ahead = self._engine.engine_core.engine_core.batch_queue
        done: list[Generated] = []
        with alone(self._scheduler):
            while ahead:
                done += self._finished(self._engine.step())
                self._num_unreported += 1
        return done

    def hold_new(self) -> None:
        """Begin no request, nor any that has no token yet, until the next load."""
        self._holds_new = True
        begun = {request.request_id for request in self._scheduler.running}
        for live in [*self._live.values()]:
            if not live.new_tokens and live.scheduled.request_id not in begun:
                self._engine.abort_request([live.internal_id], internal=True)
                self._forget(live)
                self._held.append(Waiting(request=live.request, submitted_s=live.submitted_s))
        self._held += self._siblings.take_all()

    def abort(self, response_ids: Sequence[str]) -> list[Generated]:
        """Stop these responses and return them as far as they came, in the order given. Ids that
        are not running (any more) are skipped."""
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
        """Load a version and attest to it, with running requests as `Engine.load_weights` says.
        With DRAIN, the caller must have let all running requests finish."""
        check_probes(probes, self._engine.model_config.max_model_len)
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
            waiting = [request.response_id for request in self._waiting()]
            self.abort([*self._live, *waiting])
        if keeps:
            self.hold_new()
        for live in self._live.values():
            live.spans = live.spans_with(self._version)
        if self._adapter_shape is not None and not self._adapters and probes:
            with alone(self._scheduler):  # once: no batch may leave the adapter out afterwards
                entry = Entry(salt="base", inputs=self._pictures)
                found = prompt_logprobs(self._engine, probes, entry)
            self._of_base = tuple(probes), found
        prints = self._engine.collective_rpc(
            "load_version", args=(weights, self._name, self._adapter_shape)
        )
        self._version = weights.version
        if self._adapter_shape is not None:
            self._adapters = slot_requests(self._adapter_shape, weights.path)
        if keeps:
            self._siblings.salt = str(weights.version)
        else:
            self._engine.reset_prefix_cache(reset_running_requests=True)
        if self._pictures is not None:
            self._engine.reset_encoder_cache()  # what the tower of the older weights has seen
        self._gauges.note_load(self._live.values())
        make_room(self._scheduler, self._engine.vllm_config.cache_config.block_size, probes)
        with alone(self._scheduler):
            names = self._adapter_shape.names if self._adapter_shape is not None else ("",)
            logprobs: Probed = ()
            for name in names:
                logprobs += prompt_logprobs(self._engine, probes, self._entry(name))
            if not (keeps or self._engine.reset_prefix_cache()):
                raise RuntimeError("a prefix cache that nothing uses could not be emptied")
        asked, of_base = self._of_base or ((), None)
        return Attestation(
            version=weights.version,
            fingerprints=agreed(prints),
            of_ranks=disputed(prints),
            probe_logprobs=logprobs,
            base_logprobs=of_base if asked == tuple(probes) else None,
            adapters=names,
        )

    def warm_up(self) -> None:
        """Run every kind of step once: vLLM compiles on first use, which must delay no round. It
        has captured CUDA graphs of all batch sizes by then; what samples beside them is compiled
        for one row, for multiples of 16, and for other numbers."""
        prompt_logprobs(self._engine, [(0,) * 4], self._entry())
        most = self._engine.vllm_config.scheduler_config.max_num_seqs
        for number in (1,) if on_cpu() else sorted({1, min(3, most), min(16, most), most}):
            self.add([_warming(index) for index in range(number)])
            while self.busy:
                self.step()
        self._gauges = Gauges()
        self._engine.reset_prefix_cache()

    def stats(self) -> EngineStats:
        kv_tokens = int(self._engine.vllm_config.cache_config.kv_cache_size_tokens or 0)
        return self._gauges.read(self._name, kv_tokens, self._live.values(), self._waiting())

    def sleep(self) -> None:
        """Release the GPU's memory until the next load or request; does nothing while requests run.
        The weights wait in host memory, the KV cache is dropped."""
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

    def _entry(self, adapter: str = "") -> Entry:
        """How requests for an adapter enter. One of a name that the engine lacks would run on the
        base, which the worker refuses."""
        return Entry(
            salt=self._siblings.salt,
            adapter=self._adapters.get(adapter),
            name=adapter,
            inputs=self._pictures,
        )

    @property
    def _scheduler(self) -> Any:  # Any: vLLM's scheduler, an internal
        return self._engine.engine_core.engine_core.scheduler

    def _begin(self, request: Request, submitted_s: float) -> None:
        """Hand the request to vLLM."""
        tokens = [*request.prompt_tokens, *request.kept_tokens]
        params = response_params(request, self._stop_ids, self._seed_arguments(request.seed))
        entry = self._entry(request.adapter)
        internal_id = enter(
            self._engine, request.response_id, tokens, params, entry, request.pictures
        )
        live = Live(
            request=request,
            internal_id=internal_id,
            scheduled=self._scheduler.requests[internal_id],
            logprobs=self._steps.begin(internal_id),
            submitted_s=submitted_s,
            spans=request.kept_versions,
        )
        self._live[request.response_id] = live
        if self._routes is not None:
            self._routes.begin(internal_id)
        self._without_token.append(live)
        self._siblings.enter(live.scheduled)

    def _take_in(self, request: Request, submitted_s: float) -> None:
        """Begin the request, or have it wait for the next load or for a sibling."""
        if self._holds_new:
            self._held.append(Waiting(request=request, submitted_s=submitted_s))
        elif not self._siblings.hold(request, submitted_s):
            self._begin(request, submitted_s)

    def _admit(self, held: Sequence[Waiting]) -> None:
        """Begin requests that have waited."""
        for waiting in held:
            self._begin(waiting.request, waiting.submitted_s)

    def _waiting(self) -> list[Request]:
        """Requests that wait for a sibling or for the next load."""
        return [each.request for each in (*self._siblings.waiting, *self._held)]

    def _check(self, requests: Sequence[Request]) -> None:
        seen = {*self._live, *(request.response_id for request in self._waiting())}
        limit = self._engine.model_config.max_model_len
        vocabulary = self._engine.model_config.get_vocab_size()
        for request in requests:
            check_request(request, limit, vocabulary)
            if request.response_id in seen:
                raise ValueError(
                    f"a response may be submitted once at a time, got {request.response_id} twice;"
                    " abort it first"
                )
            seen.add(request.response_id)

    # --- out of vLLM

    def _note_first_tokens(self) -> None:
        if not self._without_token:
            return
        now_s = time.time()
        waiting = []
        for live in self._without_token:
            if live.new_tokens:
                live.first_token_s = now_s
            else:
                waiting.append(live)
        self._without_token = waiting

    def _finished(self, outputs: Sequence[Any]) -> list[Generated]:  # Any: vLLM's outputs
        """The responses that ended in a step."""
        return [
            self._finish(output.request_id, output.outputs[0].finish_reason)
            for output in outputs
            if output.finished
        ]

    def _report(self) -> list[NewTokens]:
        """The tokens since the last report, if enough steps of one token each have passed."""
        self._num_unreported += 1
        if not self._report_tokens or self._num_unreported < self._report_tokens:
            return []
        self._num_unreported = 0
        now_s = time.time()
        return [
            live.report(self._version, self._name, now_s)
            for live in self._live.values()
            if live.has_unreported
        ]

    def _forget(self, live: Live) -> None:
        """Drop the records of a response that vLLM has no longer."""
        del self._live[live.request.response_id]
        self._siblings.leave(live.scheduled)
        self._steps.forget(live.internal_id)
        if self._routes is not None:
            self._routes.forget(live.internal_id)
        if live in self._without_token:
            self._without_token.remove(live)

    def _finish(self, response_id: str, reason: FinishReason) -> Generated:
        live = self._live[response_id]
        routes = None
        if self._routes is not None and reason != "aborted":
            routes = self._routes.read(live.internal_id, live.num_computed)
        self._forget(live)
        self._gauges.note_end(live)
        ended = live.generated(reason, self._version, self._name, time.time())
        return ended if routes is None else replace(ended, routes=routes)


def _warming(index: int) -> Request:
    """A request that nobody reads the response of."""
    return Request(
        prompt_id=PROBE,
        index=index,
        prompt_tokens=(0,) * 4,
        max_new_tokens=3,
        temperature=1.0,
        top_p=1.0,
        seed=0,
    )
