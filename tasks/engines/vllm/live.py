"""A response while it is inside vLLM: what vLLM's own records say of it, and what is handed on when
it is over.

Relied on, in vLLM 0.32: the output processor's request state has the tokens and log-probabilities
so far, at an abort too; the scheduler's request counts its preemptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.new_tokens import NewTokens, extend_spans, split_spans
from artifacts.records import FinishReason, Generated, Request, VersionSpan
from tasks.engines.chat_tokens import Decode


@dataclass(slots=True, kw_only=True)
class Live:
    """A request inside vLLM, with vLLM's own two records of it."""

    request: Request
    internal_id: str
    state: Any  # vllm RequestState: tokens and log-probabilities so far
    scheduled: Any  # vllm Request: preemptions
    submitted_s: float  # Unix seconds
    spans: tuple[VersionSpan, ...]  # of the tokens up to the last load
    preemptions_before: int = 0  # up to the last load
    first_token_s: float = 0.0  # Unix seconds; 0 before it
    num_told: int = 0  # new tokens that were reported

    @property
    def new_tokens(self) -> Sequence[int]:
        """Generated here: all but the kept ones."""
        tokens: Sequence[int] = self.state.detokenizer.output_token_ids
        return tokens

    @property
    def num_tokens(self) -> int:
        """Generated so far, the kept ones included."""
        return len(self.request.kept_tokens) + len(self.new_tokens)

    @property
    def has_news(self) -> bool:
        """Whether it has tokens that were not reported."""
        return len(self.new_tokens) > self.num_told

    @property
    def num_preemptions(self) -> int:
        """Since the last load."""
        return int(self.scheduled.num_preemptions) - self.preemptions_before

    def spans_with(self, version: int) -> tuple[VersionSpan, ...]:
        """The versions of its tokens, those since the last load being of this one."""
        num_closed = sum(span.num_tokens for span in self.spans)
        return extend_spans(self.spans, version, self.num_tokens - num_closed)

    def forget_preemptions(self) -> None:
        """Count from now on: weights are loaded."""
        self.preemptions_before = self.scheduled.num_preemptions

    def tell(self, version: int, engine: str, now_s: float) -> NewTokens:
        """Its tokens since the last report, which is now (Unix seconds)."""
        request = self.request
        begin, self.num_told = self.num_told, len(self.new_tokens)
        num_before = len(request.kept_tokens) + begin
        return NewTokens(
            prompt_id=request.prompt_id,
            index=request.index,
            attempt=request.attempt,
            engine=engine,
            num_before=num_before,
            token_ids=tuple(self.new_tokens[begin:]),
            logprobs=tuple(self.state.logprobs_processor.logprobs.logprobs[begin:]),
            versions=split_spans(self.spans_with(version), num_before)[1],
            submitted_s=self.submitted_s,
            first_token_s=self.first_token_s or now_s,
            reported_s=now_s,
        )

    def generated(
        self,
        reason: FinishReason,
        version: int,
        engine: str,
        decode: Decode,
        now_s: float,
    ) -> Generated:
        """The response as far as it came, which is over now (Unix seconds)."""
        request = self.request
        tokens = (*request.kept_tokens, *self.new_tokens)
        return Generated(
            prompt_id=request.prompt_id,
            index=request.index,
            token_ids=tokens,
            logprobs=(*request.kept_logprobs, *self.state.logprobs_processor.logprobs.logprobs),
            versions=self.spans_with(version),
            finish_reason=reason,
            text=decode(tokens),
            engine=engine,
            submitted_s=self.submitted_s,
            first_token_s=self.first_token_s or now_s,
            finished_s=now_s,
            attempt=request.attempt,
        )
