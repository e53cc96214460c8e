"""A request inside a simulated replica: its tokens so far, where it ends, and the records that its
tokens become (`ResponseRecords`), written by the replica's writer.
"""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.new_tokens import NewTokens, extend_spans, split_spans
from artifacts.records import FinishReason, Generated, Request, VersionSpan
from tasks.engines.simulation.writers import Writer

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
    noise: int  # the seed of its writer's draws
    target_tokens: int  # where it ends by itself or at its bound
    reason: FinishReason  # "stop" or "length" accordingly
    submitted_s: float
    num_settled: float  # tokens that it had when it last began or stopped to decode
    spans: tuple[VersionSpan, ...]  # of the tokens up to the last load
    num_reported: int  # tokens that were kept or reported
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
        """True if this replica has generated any of its tokens."""
        return self.num_tokens > len(self.request.kept_tokens)

    @property
    def whole_tokens(self) -> int:
        """Tokens that are there: the one that a step is at does not count."""
        return int(self.num_tokens + EPSILON)

    def spans_with(self, version: int) -> tuple[VersionSpan, ...]:
        """The versions of all its tokens, those since the last load being of this one."""
        num_closed = sum(span.num_tokens for span in self.spans)
        return extend_spans(self.spans, version, self.whole_tokens - num_closed)


# of every token, nats: there is no distribution that it was drawn from, and a learner that has seen
# such answers gives them about as much
LOGPROB = -0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRecords:
    """Makes the records of one replica's responses. Times are given by the event loop's clock."""

    engine: str  # name of the replica
    writer: Writer  # of the responses
    epoch_s: float  # the zero of that clock in the times of the records

    def begin(self, request: Request, noise: int, now_s: float) -> Decoding:
        """The request as it waits to be decoded, up to its bound or to its writer's end."""
        length = self.writer.num_tokens(request, noise)
        return Decoding(
            request=request,
            noise=noise,
            target_tokens=min(length, request.max_new_tokens),
            reason="length" if length > request.max_new_tokens else "stop",
            submitted_s=now_s,
            num_settled=float(len(request.kept_tokens)),
            num_reported=len(request.kept_tokens),
            spans=request.kept_versions,
        )

    def report(self, sequence: Decoding, version: int, now_s: float) -> NewTokens:
        """The tokens since the last report; version: of those since the last load."""
        request = sequence.request
        begin, sequence.num_reported = sequence.num_reported, sequence.whole_tokens
        written = self.writer.tokens(request, sequence.noise, sequence.num_reported)
        first_token_s = now_s if sequence.first_token_s is None else sequence.first_token_s
        return NewTokens(
            prompt_id=request.prompt_id,
            index=request.index,
            attempt=request.attempt,
            engine=self.engine,
            num_before=begin,
            token_ids=written[begin:],
            logprobs=(LOGPROB,) * (sequence.num_reported - begin),
            versions=split_spans(sequence.spans_with(version), begin)[1],
            submitted_s=self.epoch_s + sequence.submitted_s,
            first_token_s=self.epoch_s + first_token_s,
            reported_s=self.epoch_s + now_s,
        )

    def end(
        self, sequence: Decoding, reason: FinishReason, version: int, now_s: float
    ) -> Generated:
        """The response as far as it came; version: of the tokens since the last load."""
        request = sequence.request
        num_kept = len(request.kept_tokens)
        num_tokens = sequence.whole_tokens
        written = self.writer.tokens(request, sequence.noise, num_tokens)
        tokens = request.kept_tokens + written[num_kept:]
        first_token_s = now_s if sequence.first_token_s is None else sequence.first_token_s
        return Generated(
            prompt_id=request.prompt_id,
            index=request.index,
            token_ids=tokens,
            logprobs=request.kept_logprobs + (LOGPROB,) * (num_tokens - num_kept),
            versions=sequence.spans_with(version),
            finish_reason=reason,
            text=self.writer.text(tokens),
            engine=self.engine,
            submitted_s=self.epoch_s + sequence.submitted_s,
            first_token_s=self.epoch_s + first_token_s,
            finished_s=self.epoch_s + now_s,
            attempt=request.attempt,
        )
