"""What a simulated replica makes of a request, and of its decoding when that is over: the record of
a response, written by its writer."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.new_tokens import NewTokens, split_spans
from artifacts.records import FinishReason, Generated, Request
from tasks.engines.simulation.decoding import Decoding
from tasks.engines.simulation.writers import Writer

# of every token, nats: there is no distribution that it was drawn from, and a learner that has seen
# such answers gives them about as much
LOGPROB = -0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Makes the responses of one replica. Times are given by the event loop's clock."""

    engine: str  # name of the replica
    writer: Writer  # who writes them
    epoch_s: float  # the zero of that clock in the times of the records

    def begin(self, request: Request, noise: int, now_s: float) -> Decoding:
        """The request as it waits to be decoded, to its bound or to where its writer ends."""
        length = self.writer.num_tokens(request, noise)
        return Decoding(
            request=request,
            noise=noise,
            target_tokens=min(length, request.max_new_tokens),
            reason="length" if length > request.max_new_tokens else "stop",
            submitted_s=now_s,
            num_settled=float(len(request.kept_tokens)),
            num_told=len(request.kept_tokens),
            spans=request.kept_versions,
        )

    def tell(self, sequence: Decoding, version: int, now_s: float) -> NewTokens:
        """Its tokens since it was told of last; version: of those since the last load."""
        request = sequence.request
        begin, sequence.num_told = sequence.num_told, sequence.whole_tokens
        written = self.writer.tokens(request, sequence.noise, sequence.num_told)
        first_token_s = now_s if sequence.first_token_s is None else sequence.first_token_s
        return NewTokens(
            prompt_id=request.prompt_id,
            index=request.index,
            attempt=request.attempt,
            engine=self.engine,
            num_before=begin,
            token_ids=written[begin:],
            logprobs=(LOGPROB,) * (sequence.num_told - begin),
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
