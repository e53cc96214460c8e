"""Which weight version sampled which tokens of a response, as spans: how they grow and part.

Neighbours of one version are always one span, so that equal tokens have equal spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from artifacts.records import VersionSpan

Spans = tuple[VersionSpan, ...]


def extend_spans(kept: Spans, version: int, num_tokens: int) -> Spans:
    """The spans with num_tokens more of this version."""
    if num_tokens == 0:
        return kept
    if kept and kept[-1].version == version:
        return (
            *kept[:-1],
            VersionSpan(version=version, num_tokens=kept[-1].num_tokens + num_tokens),
        )
    return (*kept, VersionSpan(version=version, num_tokens=num_tokens))


def join_spans(before: Spans, after: Iterable[VersionSpan]) -> Spans:
    """The spans of some tokens and of those that follow them."""
    for span in after:
        before = extend_spans(before, span.version, span.num_tokens)
    return before


def split_spans(spans: Sequence[VersionSpan], num_tokens: int) -> tuple[Spans, Spans]:
    """The spans of the first num_tokens, and those of the rest."""
    before: Spans = ()
    after: Spans = ()
    for span in spans:
        num_before = min(span.num_tokens, num_tokens)
        num_tokens -= num_before
        before = extend_spans(before, span.version, num_before)
        after = extend_spans(after, span.version, span.num_tokens - num_before)
    return before, after
