"""A request inside a simulated replica: what it has, and where it ends."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.new_tokens import extend_spans
from artifacts.records import FinishReason, Request, VersionSpan

EPSILON = 1e-6  # tokens; float noise of a sum of steps


@dataclass(slots=True)
class StepCount:
    """Decode steps of a batch; fractional between two of them."""

    steps: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Decoding:
    """A request inside the replica, running or waiting.

    While it decodes it gains a token with every step of its batch, and nothing is written to it.
    """

    request: Request
    noise: int  # what its writer draws from
    target_tokens: int  # where it ends by itself or at its bound
    reason: FinishReason  # which of the two
    submitted_s: float
    num_settled: float  # tokens that it had when it last began or stopped to decode
    spans: tuple[VersionSpan, ...]  # of the tokens up to the last load
    num_told: int  # tokens that were kept or reported
    first_token_s: float | None = None
    count: StepCount | None = None  # of the batch that it decodes in; None while it does not
    began_steps: float = 0.0  # that count when it began

    @property
    def num_tokens(self) -> float:
        """Generated so far; fractional between two steps."""
        if self.count is None:
            return self.num_settled
        return min(self.target_tokens, self.num_settled + self.count.steps - self.began_steps)

    @property
    def ends_at_steps(self) -> float:
        """The count of its batch at which it ends."""
        return self.began_steps + self.target_tokens - self.num_settled

    def begin(self, count: StepCount) -> None:
        """Decode with this batch."""
        self.count = count
        self.began_steps = count.steps

    def stop(self) -> None:
        """Decode no longer, and keep the tokens."""
        self.num_settled = self.num_tokens
        self.count = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_tokens)

    @property
    def is_begun(self) -> bool:
        """Whether this replica has generated any of it."""
        return self.num_tokens > len(self.request.kept_tokens)

    @property
    def whole_tokens(self) -> int:
        """Tokens that are there: the one that a step is at does not count."""
        return int(self.num_tokens + EPSILON)

    def spans_with(self, version: int) -> tuple[VersionSpan, ...]:
        """The versions of all its tokens, those since the last load being of this one."""
        num_closed = sum(span.num_tokens for span in self.spans)
        return extend_spans(self.spans, version, self.whole_tokens - num_closed)
