"""Reports of new tokens while an engine still generates a response, and the weight versions of
tokens.

    engine ─▶ NewTokens, NewTokens, ... ─▶ PartialResponse: all tokens reported so far
          └─▶ Generated, when the response is over

Versions are stored as spans; adjacent tokens of one version are always one span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from artifacts.quickly_packed import quickly_packed
from artifacts.records import Generated, Request, VersionSpan, response_id

Spans = tuple[VersionSpan, ...]


def extend_spans(kept: Spans, version: int, num_tokens: int) -> Spans:
    """Append num_tokens tokens of this weight version to the spans."""
    if num_tokens == 0:
        return kept
    if kept and kept[-1].version == version:
        num_tokens += kept[-1].num_tokens
        kept = kept[:-1]
    return (*kept, *one_span(version, num_tokens))


@lru_cache(maxsize=4096)
def one_span(version: int, num_tokens: int) -> Spans:
    """The spans of num_tokens >= 1 tokens of this version; equal ones of a report are one object,
    which is packed once."""
    return (VersionSpan(version=version, num_tokens=num_tokens),)


def join_spans(before: Spans, after: Iterable[VersionSpan]) -> Spans:
    """Concatenate the spans of some tokens and of the tokens that follow them."""
    for span in after:
        before = extend_spans(before, span.version, span.num_tokens)
    return before


def split_spans(spans: Sequence[VersionSpan], num_tokens: int) -> tuple[Spans, Spans]:
    """Split spans into those of the first num_tokens tokens and those of the rest."""
    before: Spans = ()
    after: Spans = ()
    for span in spans:
        num_before = min(span.num_tokens, num_tokens)
        num_tokens -= num_before
        before = extend_spans(before, span.version, num_before)
        after = extend_spans(after, span.version, span.num_tokens - num_before)
    return before, after


@quickly_packed
@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """A report of new tokens of a response that is still being generated. Fields are named as those
    of its later `Generated`."""

    prompt_id: str  # the prompt's id
    index: int  # which response of the prompt
    attempt: int  # the attempt that asked for the response, as the request had it
    engine: str  # name of the replica
    num_before: int  # tokens of the response before these, the kept ones of its request included
    token_ids: tuple[int, ...]  # the new tokens, at least one
    logprobs: tuple[float, ...]  # behaviour log-probability of each of them
    versions: Spans  # which version sampled which of them
    submitted_s: float  # when the engine took the request
    first_token_s: float  # when the response's first token came
    reported_s: float  # when these were reported

    @property
    def response_id(self) -> str:
        return response_id(self.prompt_id, self.index)

    def from_start(self, request: Request) -> NewTokens | None:
        """Prepend the request's kept tokens, so that the report begins at the response's start;
        None unless the reported tokens directly follow the kept tokens."""
        if self.num_before != len(request.kept_tokens):
            return None
        return replace(
            self,
            num_before=0,
            token_ids=request.kept_tokens + self.token_ids,
            logprobs=request.kept_logprobs + self.logprobs,
            versions=join_spans(request.kept_versions, self.versions),
        )


News = Generated | NewTokens  # an engine's message about a response


def split_news(news: Sequence[News]) -> tuple[list[Generated], list[NewTokens]]:
    """Split messages into finished responses and reports of new tokens."""
    over = [each for each in news if isinstance(each, Generated)]
    return over, [each for each in news if isinstance(each, NewTokens)]


class PartialResponse:
    """A response's tokens so far, collected from its engine's reports."""

    def __init__(self, first: NewTokens) -> None:
        """first: the report that begins at the response's start (`num_before` is 0)."""
        assert first.num_before == 0, "a response is reported from its start"
        self._last = first
        self._token_ids = [*first.token_ids]
        self._logprobs = [*first.logprobs]
        self._versions = first.versions

    def extend(self, new: NewTokens) -> bool:
        """Add a report if it directly follows the tokens so far. Otherwise add nothing and return
        False."""
        if new.num_before != len(self._token_ids):
            return False
        self._last = new
        self._token_ids += new.token_ids
        self._logprobs += new.logprobs
        self._versions = join_spans(self._versions, new.versions)
        return True

    def generated(self) -> Generated:
        """The reported tokens as an aborted response, with an empty text."""
        last = self._last
        return Generated(
            prompt_id=last.prompt_id,
            index=last.index,
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            versions=self._versions,
            finish_reason="aborted",
            text="",
            engine=last.engine,
            submitted_s=last.submitted_s,
            first_token_s=last.first_token_s,
            finished_s=last.reported_s,
            attempt=last.attempt,
        )
