"""A response while it is inside vLLM: what vLLM's own records say of it, and what is handed on when
it is over.

Relied on, in vLLM 0.32: the output processor's request state has the tokens and log-probabilities
so far, at an abort too; the scheduler's request counts its preemptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.new_tokens import NewTokens
from artifacts.records import FinishReason, Generated, Request, VersionSpan
from artifacts.version_spans import extend_spans, split_spans


@dataclass(slots=True, kw_only=True)
class Live:
    """A request inside vLLM, with vLLM's own two records of it."""

    request: Request
    asked: Request  # as it came, without what has been verified of it
    internal_id: str
    state: Any  # vllm RequestState: tokens and log-probabilities so far
    scheduled: Any  # vllm Request: preemptions
    submitted_s: float  # Unix seconds
    spans: tuple[VersionSpan, ...]  # of the tokens up to the last load
    preemptions_before: int = 0  # up to the last load
    num_told: int  # of its tokens, those that whoever asked has, kept ones included
    draft: tuple[int, ...] = ()  # that are being verified; nothing is decoded meanwhile
    num_verified: int = 0  # of its kept tokens, those that were
    first_token_s: float = 0.0  # Unix seconds; 0 before it

    @property
    def new_tokens(self) -> Sequence[int]:
        """Decoded here: all but the kept ones, and none while a draft is verified."""
        tokens: Sequence[int] = self.state.detokenizer.output_token_ids
        return () if self.draft else tokens

    @property
    def new_logprobs(self) -> Sequence[float]:
        """Theirs."""
        logprobs: Sequence[float] = self.state.logprobs_processor.logprobs.logprobs
        return () if self.draft else logprobs

    @property
    def num_tokens(self) -> int:
        """Generated so far, the kept ones included."""
        return len(self.request.kept_tokens) + len(self.new_tokens)

    @property
    def has_news(self) -> bool:
        """Whether it has tokens that were not reported."""
        return self.num_tokens > self.num_told

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
        num_before, self.num_told = self.num_told, self.num_tokens
        return NewTokens(
            prompt_id=request.prompt_id,
            index=request.index,
            attempt=request.attempt,
            engine=engine,
            num_before=num_before,
            token_ids=(*request.kept_tokens, *self.new_tokens)[num_before:],
            logprobs=(*request.kept_logprobs, *self.new_logprobs)[num_before:],
            versions=split_spans(self.spans_with(version), num_before)[1],
            submitted_s=self.submitted_s,
            first_token_s=self.first_token_s or now_s,
            told_s=now_s,
        )

    def generated(
        self,
        reason: FinishReason,
        version: int,
        engine: str,
        tokenizer: Any,  # transformers' tokenizers have no useful common type
        now_s: float,
    ) -> Generated:
        """The response as far as it came, which is over now (Unix seconds)."""
        request = self.request
        tokens = (*request.kept_tokens, *self.new_tokens)
        return Generated(
            prompt_id=request.prompt_id,
            index=request.index,
            token_ids=tokens,
            logprobs=(*request.kept_logprobs, *self.new_logprobs),
            versions=self.spans_with(version),
            finish_reason=reason,
            text=tokenizer.decode(tokens, skip_special_tokens=True),
            engine=engine,
            submitted_s=self.submitted_s,
            first_token_s=self.first_token_s or now_s,
            finished_s=now_s,
            attempt=request.attempt,
            num_verified=self.num_verified,
        )
