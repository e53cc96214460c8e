"""A request inside a simulated replica: its tokens so far and where it ends; and `ResponseRecords`,
which makes the records of its tokens from what the replica's writer wrote."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.new_tokens import NewTokens, extend_spans, split_spans
from artifacts.records import FinishReason, Generated, Request, VersionSpan
from tasks.engines.simulation.writers import Writer

EPSILON = 1e-6  # tokens; float noise of a sum of steps


@dataclass(slots=True)
class StepCount:
    """The number of decode steps that a batch has made; fractional between two steps."""

    steps: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Decoding:
    """A request inside the replica, running or waiting. While it decodes, no step writes to it: its
    number of tokens follows from the batch's step count."""

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
        """Tokens generated so far, kept ones included; fractional between two steps."""
        if self.count is None:
            return self.num_settled
        return min(self.target_tokens, self.num_settled + self.count.steps - self.began_steps)

    def begin(self, count: StepCount) -> None:
        """Decode with the batch that has this step count."""
        self.count = count
        self.began_steps = count.steps

    def stop(self) -> None:
        """Stop decoding, and keep the tokens."""
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
        """Finished tokens: the token of an unfinished step does not count."""
        return int(self.num_tokens + EPSILON)

    def spans_with(self, version: int) -> tuple[VersionSpan, ...]:
        """The weight versions of all its tokens; `version` sampled those since the last load."""
        num_closed = sum(span.num_tokens for span in self.spans)
        return extend_spans(self.spans, version, self.whole_tokens - num_closed)


# log-probability of every token, nats: simulated tokens are drawn from no distribution, and a
# learner that has seen such answers gives them about this much
LOGPROB = -0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRecords:
    """Makes the records of a replica's responses; now_s: on the event loop's clock."""

    engine: str  # name of the replica
    writer: Writer  # of the responses
    epoch_s: float  # the zero of that clock in the times of the records

    def begin(self, request: Request, noise: int, now_s: float) -> Decoding:
        """Return the request as a sequence that waits to be decoded; it will end at its bound on
        tokens or where its writer ends, whichever comes first."""
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
        """The record of the tokens since the last report; version: of the loaded weights."""
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
        """The record of the response as far as it came; version: of the loaded weights."""
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
