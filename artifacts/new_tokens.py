"""What an engine tells of a response that it still generates: the tokens since it last told, never
all of them again.

    engine ─▶ NewTokens, NewTokens, ... ─▶ Reported: the response as far as it was told
          └─▶ Generated, when it is over

Whoever hears every report has what would else die with the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from artifacts.records import Generated, Request, VersionSpan, response_id
from artifacts.version_spans import join_spans


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """Tokens of a response that goes on, with what its `Generated` will say of them."""

    prompt_id: str  # the prompt's id
    index: int  # which response of the prompt
    attempt: int  # the attempt that asked for it, as the request had it
    engine: str  # name of the replica
    num_before: int  # tokens of the response before these, the kept ones of its request included
    token_ids: tuple[int, ...]  # the new tokens, at least one
    logprobs: tuple[float, ...]  # behaviour log-probability of each of them
    versions: tuple[VersionSpan, ...]  # which version sampled which of them
    submitted_s: float  # when the engine took the request
    first_token_s: float  # when its first token came
    told_s: float  # when these were told

    @property
    def response_id(self) -> str:
        return response_id(self.prompt_id, self.index)

    def from_start(self, request: Request) -> NewTokens | None:
        """These with all that the request for them had kept; None unless they follow on it."""
        if self.num_before != len(request.kept_tokens):
            return None
        return replace(
            self,
            num_before=0,
            token_ids=request.kept_tokens + self.token_ids,
            logprobs=request.kept_logprobs + self.logprobs,
            versions=join_spans(request.kept_versions, self.versions),
        )


News = Generated | NewTokens  # what an engine has to say of a response


def parted(news: Iterable[News]) -> tuple[list[Generated], list[NewTokens]]:
    """The responses that are over, and what is told of others."""
    over: list[Generated] = []
    told: list[NewTokens] = []
    for each in news:
        if isinstance(each, Generated):
            over.append(each)
        else:
            told.append(each)
    return over, told


class Reported:
    """A response as far as it was told."""

    def __init__(self, first: NewTokens) -> None:
        """first: from the response's start."""
        assert first.num_before == 0, "a response is told from its start"
        self._last = first
        self._token_ids = [*first.token_ids]
        self._logprobs = [*first.logprobs]
        self._versions = first.versions

    def extend(self, new: NewTokens) -> bool:
        """Whether these tokens follow on; others are left."""
        if new.num_before != len(self._token_ids):
            return False
        self._last = new
        self._token_ids += new.token_ids
        self._logprobs += new.logprobs
        self._versions = join_spans(self._versions, new.versions)
        return True

    def generated(self) -> Generated:
        """What is told of it as a response that was stopped there, without its text."""
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
            finished_s=last.told_s,
            attempt=last.attempt,
        )
