"""A response while it is inside vLLM (`Live`), and the counters of a replica (`Gauges`).

Relied on, in vLLM 0.32: the scheduler's request has the tokens so far, also after an abort, and
counts its preemptions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.new_tokens import NewTokens, extend_spans, one_span, split_spans
from artifacts.records import FinishReason, Generated, Request, VersionSpan
from tasks.engines.base import EngineStats


@dataclass(slots=True, kw_only=True)
class Live:
    """A request inside vLLM, with the scheduler's own record of it."""

    request: Request
    internal_id: str
    scheduled: Any  # vllm Request: tokens so far, preemptions
    logprobs: Sequence[float]  # of its new tokens so far, nats
    submitted_s: float  # Unix seconds
    spans: tuple[VersionSpan, ...]  # of the tokens up to the last load
    preemptions_before: int = 0  # up to the last load
    first_token_s: float = 0.0  # Unix seconds; 0 before it
    num_reported: int = 0  # new tokens that were reported

    @property
    def new_tokens(self) -> Sequence[int]:
        """Tokens that this replica generated: all but the kept ones."""
        tokens: Sequence[int] = self.scheduled._output_token_ids
        return tokens

    @property
    def num_tokens(self) -> int:
        """Tokens so far after the prompt, the kept ones included."""
        return len(self.request.kept_tokens) + len(self.new_tokens)

    @property
    def num_computed(self) -> int:
        """Tokens of prompt and response that its layers computed: all but the last."""
        return len(self.request.prompt_tokens) + self.num_tokens - 1

    @property
    def has_unreported(self) -> bool:
        """True if it has tokens that were not reported."""
        return len(self.new_tokens) > self.num_reported

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the last load."""
        return int(self.scheduled.num_preemptions) - self.preemptions_before

    def spans_with(self, version: int) -> tuple[VersionSpan, ...]:
        """The weight versions of its tokens; `version` sampled those since the last load."""
        num_closed = sum(span.num_tokens for span in self.spans)
        return extend_spans(self.spans, version, self.num_tokens - num_closed)

    def report(self, version: int, engine: str, now_s: float) -> NewTokens:
        """The record of the tokens since the last report; now_s: Unix seconds."""
        request = self.request
        begin, self.num_reported = self.num_reported, len(self.new_tokens)
        num_before = len(request.kept_tokens) + begin
        num_closed = sum(span.num_tokens for span in self.spans)
        if num_before >= num_closed:  # as good as always
            versions = one_span(version, self.num_reported - begin)
        else:
            versions = split_spans(self.spans_with(version), num_before)[1]
        return NewTokens(
            prompt_id=request.prompt_id,
            index=request.index,
            attempt=request.attempt,
            engine=engine,
            num_before=num_before,
            token_ids=tuple(self.new_tokens[begin:]),
            logprobs=tuple(self.logprobs[begin:]),
            versions=versions,
            submitted_s=self.submitted_s,
            first_token_s=self.first_token_s or now_s,
            reported_s=now_s,
        )

    def generated(
        self,
        reason: FinishReason,
        version: int,
        engine: str,
        now_s: float,
    ) -> Generated:
        """The record, without text, of the response as far as it came; it ends at now_s (Unix
        seconds)."""
        request = self.request
        tokens = (*request.kept_tokens, *self.new_tokens)
        return Generated(
            prompt_id=request.prompt_id,
            index=request.index,
            token_ids=tokens,
            logprobs=(*request.kept_logprobs, *self.logprobs),
            versions=self.spans_with(version),
            finish_reason=reason,
            text="",
            engine=engine,
            submitted_s=self.submitted_s,
            first_token_s=self.first_token_s or now_s,
            finished_s=now_s,
            attempt=request.attempt,
        )


class Gauges:
    """The counters of one engine: tokens, preemptions and KV usage."""

    def __init__(self) -> None:
        self._num_tokens = 0  # of what has ended
        self._num_preemptions = 0  # of what has ended, since the last load
        self._kv_usage_max = 0.0  # since the last load

    def note_step(self, kv_usage: float) -> None:
        """Record the KV usage after a step. Blocks of responses that ended in the step are free by
        then; where the cache runs full, that makes no difference."""
        self._kv_usage_max = max(self._kv_usage_max, kv_usage)

    def note_end(self, live: Live) -> None:
        """Count the tokens and preemptions of a response that is over."""
        self._num_tokens += len(live.new_tokens)
        self._num_preemptions += live.num_preemptions

    def note_load(self, running: Iterable[Live]) -> None:
        """Reset the counters, without the preemptions that the load itself made."""
        self._num_preemptions = 0
        self._kv_usage_max = 0.0
        for live in running:
            live.preemptions_before = live.scheduled.num_preemptions

    def read(
        self, engine: str, kv_tokens: int, running: Collection[Live], waiting: Iterable[Request]
    ) -> EngineStats:
        """Return the counters, with the responses in vLLM and the requests that wait for it."""
        begun = {live.request.response_id: live.num_tokens for live in running}
        to_begin = {request.response_id: len(request.kept_tokens) for request in waiting}
        return EngineStats(
            engine=engine,
            kv_usage_max=self._kv_usage_max,
            kv_tokens=kv_tokens,
            progress=begun | to_begin,
            num_preemptions=self._num_preemptions + sum(live.num_preemptions for live in running),
            tokens_generated=self._num_tokens + sum(len(live.new_tokens) for live in running),
        )
