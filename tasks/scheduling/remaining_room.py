"""Whether fewer engines have room for what still runs (RollPacker, section 4.4).

    lengths of earlier rounds ─▶ projected length of each response ─▶ peak of the KV caches

Pure. Leaves out which engines are tried, and how many must stay (`stream_training`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

CAUTION = 0.9  # quantile of the lengths a response may still reach that it is projected to reach


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingResponse:
    """A response that is not finished."""

    prompt_tokens: int  # tokens of its prompt
    num_tokens: int  # tokens after it that the engine holds, given ones included
    max_new_tokens: int  # bound on them

    @property
    def held_tokens(self) -> int:
        """What it takes of a KV cache, and costs to compute again."""
        return self.prompt_tokens + self.num_tokens


class RemainingRoom:
    """What the engines that stay can take."""

    def __init__(self, max_running: int, kv_share: float, lengths: Iterable[int] = ()) -> None:
        """max_running: responses that an engine may decode. kv_share: of the KV caches that may be
        filled. lengths: tokens that earlier responses came to hold, given ones included; without
        any, every response is projected to its bound."""
        self._max_running = max_running
        self._kv_share = kv_share
        self._lengths = sorted(lengths)

    def fits(self, running: Sequence[GrowingResponse], capacity_tokens: Collection[int]) -> bool:
        """Whether engines with KV caches of these sizes can take everything that runs."""
        if len(running) > self._max_running * len(capacity_tokens):
            return False
        return self.projected_peak_tokens(running) <= self._kv_share * sum(capacity_tokens)

    def projected_peak_tokens(self, running: Sequence[GrowingResponse]) -> int:
        """Largest KV use ahead if all of these decode side by side, a token each per step, until
        they reach their projected lengths."""
        left = sorted(
            (self.projected_length(response) - response.num_tokens, response.held_tokens)
            for response in running
        )
        held_tokens = sum(tokens for _, tokens in left)
        num_running = len(left)
        peak = 0
        for steps, tokens in left:
            peak = max(peak, held_tokens + steps * num_running)
            held_tokens -= tokens
            num_running -= 1
        return peak

    def projected_length(self, response: GrowingResponse) -> int:
        """Tokens that a response will have: a high quantile of the earlier lengths beyond what it
        has already, within its bound."""
        beyond = self._lengths[bisect_right(self._lengths, response.num_tokens) :]
        if not beyond:
            return response.max_new_tokens
        quantile = beyond[min(len(beyond) - 1, int(CAUTION * len(beyond)))]
        return min(response.max_new_tokens, quantile)
