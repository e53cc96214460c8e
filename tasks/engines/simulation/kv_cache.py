"""The tokens in the KV cache of a simulated replica, as sums that an event changes in constant
time.

A sequence that decodes adds a token with every step: its part of a sum is what it would have had at
step 0 of its batch, and the number of such sequences times the steps is added when the sum is
read. The cache is paged: a sequence takes room only for the tokens that it has.
"""

from __future__ import annotations

from collections import Counter

from tasks.engines.simulation.decoding import Decoding, StepCount


class KvCache:
    """Room taken, and tokens read by a decode step."""

    def __init__(self, count: StepCount, shares_prompts: bool) -> None:
        """shares_prompts: whether the responses to a prompt keep it once."""
        self._count = count
        self._shares_prompts = shares_prompts
        self._holders = Counter[str]()  # sequences that hold a prompt, by its id
        self.clear()

    def clear(self) -> None:
        """Forget every sequence."""
        self.num_decoding = 0
        self._held_at_zero = 0.0
        self._read_at_zero = 0.0
        self._holders.clear()

    @property
    def held_tokens(self) -> float:
        """That take room."""
        return self._held_at_zero + self.num_decoding * self._count.steps

    @property
    def read_tokens(self) -> float:
        """That a decode step reads; a shared prompt is read for each of its responses."""
        return self._read_at_zero + self.num_decoding * self._count.steps

    def missing_tokens(self, sequence: Decoding) -> float:
        """Tokens of a sequence that waits which would have to be prefilled."""
        is_shared = self._shares_prompts and self._holders[sequence.request.prompt_id]
        return sequence.num_settled + (0 if is_shared else sequence.num_prompt_tokens)

    def enter(self, sequence: Decoding) -> None:
        """It takes room."""
        self._held_at_zero += self.missing_tokens(sequence)
        self._holders[sequence.request.prompt_id] += 1

    def begin(self, sequence: Decoding) -> None:
        """It decodes, and grows."""
        self.num_decoding += 1
        self._held_at_zero -= sequence.began_steps
        self._read_at_zero += self._read_part(sequence)

    def leave(self, sequence: Decoding) -> None:
        """It gives its room back, and decodes no longer; told before it stops."""
        if sequence.count is not None:
            self.num_decoding -= 1
            self._held_at_zero += sequence.began_steps
            self._read_at_zero -= self._read_part(sequence)
        self._holders[sequence.request.prompt_id] -= 1
        self._held_at_zero -= self.missing_tokens(sequence)
        if not self._holders[sequence.request.prompt_id]:
            del self._holders[sequence.request.prompt_id]

    def _read_part(self, sequence: Decoding) -> float:
        return sequence.num_prompt_tokens + sequence.num_settled - sequence.began_steps
