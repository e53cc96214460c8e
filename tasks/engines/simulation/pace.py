"""How long the decode steps of a simulated replica take. Pure.

    step = fixed + sequences + max(weights, matrix products) + KV cache read

With speculative drafts a step may verify several tokens of every sequence, each at the cost of a
further sequence, except that the cache is read once; the cheaper kind of step per token is taken.
Every decoding sequence adds a token to the cache in each step, so the time of a run of steps is
quadratic in their number; it is computed in both directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The speed of a simulated replica and the size of its KV cache."""

    step_s: float  # seconds of a decode step of one sequence
    step_s_per_sequence: float  # seconds that the first further sequence adds to it
    # seconds that prefilling a token holds up the batch, beside its matrix products where steps
    # are shared
    prefill_s_per_token: float
    max_batch: int  # sequences that decode at the same time
    kv_tokens: int  # tokens, prompts included, that fit the KV cache
    # power of their number that the others' seconds grow with: below 1 where each adds less
    sequence_exponent: float = 1.0
    step_s_per_kv_token: float = 0.0  # seconds that each token of the cache adds to a decode step
    # seconds in which a step reads the weights: the least that its matrix products take
    weights_s: float = 0.0
    matrix_s_per_token: float = 0.0  # seconds of the matrix products of a token
    chunk_tokens: int = 0  # of a step, decoded and prefilled; 0: prefilling shares no step
    # arithmetic of attending to one earlier token over that of a token's matrix products
    attention_share: float = 0.0
    kv_margin: float = 0.05  # share of the cache that stays free when a sequence is let in
    shares_prompts: bool = False  # whether the responses to a prompt keep it once
    draft_tokens: int = 0  # proposed for every sequence of a step that has drafts
    draft_yield: float = 1.0  # tokens that a sequence gains in such a step, on average

    def base_s(self, num_sequences: int, prefill_tokens: float) -> float:
        """Seconds of a step without reading the KV cache."""
        matrix_s = self.matrix_s_per_token * (num_sequences + prefill_tokens)
        others: float = max(0, num_sequences - 1) ** self.sequence_exponent
        return (
            self.step_s
            + self.step_s_per_sequence * others
            + max(self.weights_s, matrix_s)
            + (self.prefill_s_per_token * prefill_tokens if self.chunk_tokens else 0.0)
        )

    def steps_s(
        self, steps: float, num_sequences: int, read_tokens: float, prefill_tokens: float
    ) -> float:
        """Seconds of this many steps; read_tokens: in the sequences' cache before the first."""
        level = read_tokens + num_sequences * (steps - 1) / 2
        base_s, token_s = self._price(num_sequences, read_tokens, prefill_tokens)
        return steps * (base_s + token_s * level)

    def steps_in(
        self, seconds: float, num_sequences: int, read_tokens: float, prefill_tokens: float
    ) -> float:
        """The number of steps in this many seconds: the inverse of steps_s."""
        base_s, token_s = self._price(num_sequences, read_tokens, prefill_tokens)
        curve = token_s * num_sequences / 2
        slope = base_s + token_s * read_tokens - curve
        return 2 * seconds / (slope + math.sqrt(slope * slope + 4 * curve * seconds))

    def _price(
        self, num_sequences: int, read_tokens: float, prefill_tokens: float
    ) -> tuple[float, float]:
        """The price of one token for every sequence, with or without drafts, whichever is cheaper
        now: seconds without reading the cache, and seconds for each token in the cache."""
        plain = self.base_s(num_sequences, prefill_tokens), self.step_s_per_kv_token
        if not self.draft_tokens or prefill_tokens:
            return plain
        verified_s = self.base_s(num_sequences * (1 + self.draft_tokens), 0)
        drafted = verified_s / self.draft_yield, self.step_s_per_kv_token / self.draft_yield
        return min(plain, drafted, key=lambda price: price[0] + price[1] * read_tokens)

    def prefill_work(self, num_tokens: float) -> float:
        """The work of prefilling this many tokens, in tokens without attention."""
        return num_tokens * (1 + self.attention_share * num_tokens / 2)

    def chunk(self, num_sequences: int, work: float) -> float:
        """The work, of what is left, that a step prefills beside decoding these sequences."""
        return min(work, max(1, self.chunk_tokens - num_sequences))
