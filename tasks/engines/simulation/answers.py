"""What a simulated replica makes of a request, and of its decoding when that is over: the record of
a response, written by its writer."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from artifacts.new_tokens import NewTokens
from artifacts.records import FinishReason, Generated, Request
from artifacts.version_spans import split_spans
from tasks.engines.simulation.decoding import Decoding
from tasks.engines.simulation.writers import Writer
from tasks.scheduling.seeds import derive_seed

# of every token, nats: there is no distribution that it was drawn from, and a learner that has seen
# such answers gives them about as much
LOGPROB = -0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Makes the responses of one replica. Times are given by the event loop's clock."""

    engine: str  # name of the replica
    writer: Writer  # who writes them
    epoch_s: float  # the zero of that clock in the times of the records
    # probability that a draft's token is not drawn again; None where drafts are not looked at
    divergence: float | None = None

    def begin(self, request: Request, noise: int, now_s: float) -> Decoding:
        """The request as it waits to be decoded, to its bound or to where its writer ends."""
        length = self.writer.num_tokens(request, noise)
        target_tokens = min(length, request.max_new_tokens)
        num_kept = len(request.kept_tokens)
        num_drafted = self._num_drafted(request, target_tokens)
        num_verified = self._num_verified(request, num_drafted)
        return Decoding(
            request=request,
            noise=noise,
            target_tokens=target_tokens,
            reason="length" if length > request.max_new_tokens else "stop",
            submitted_s=now_s,
            num_settled=float(num_kept + num_verified),
            num_told=num_kept,
            spans=request.kept_versions,
            num_verified=num_verified,
            num_refused=num_drafted - num_verified,
        )

    def _num_drafted(self, request: Request, target_tokens: int) -> int:
        """Tokens of the draft that are read: the last of a response is drawn anyway, after it."""
        if self.divergence is None or request.kept_tokens:
            return 0
        return max(0, min(len(request.draft_tokens), target_tokens - 1))

    def _num_verified(self, request: Request, num_drafted: int) -> int:
        """Those up to the first that is not drawn again."""
        if not (num_drafted and self.divergence):
            return num_drafted
        if self.divergence == 1:
            return 0
        draws = random.Random(derive_seed(request.seed, "draft", request.attempt))
        num_alike = math.log(1 - draws.random()) / math.log(1 - self.divergence)
        return min(num_drafted, int(num_alike))

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
            told_s=self.epoch_s + now_s,
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
            num_verified=sequence.num_verified,
        )
