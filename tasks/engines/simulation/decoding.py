"""The batch of a simulated replica: what decodes, what waits for room, and when something happens
next.

    add, remove ─▶ fill: preempt what does not fit, admit what does ─▶ seconds_to_event
    ─▶ advance(now): the sequences that have ended since ─▶ ...

Every running sequence gains one token per decode step; a step takes longer the more sequences it
decodes; a full KV cache preempts the sequence admitted last, which waits and is prefilled again.
Between two events nothing changes, so a batch advances from one to the next at once. Pure: the time
is passed in. Leaves out requests and answers (`replica`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from artifacts.records import FinishReason, Request, VersionSpan
from tasks.engines.admission import extend_spans

EPSILON = 1e-6  # tokens; float noise of a sum of steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The speed and room of a replica."""

    step_s: float  # seconds of a decode step of one sequence
    step_s_per_sequence: float  # seconds that each further sequence adds to it
    prefill_s_per_token: float  # seconds that prefilling a token holds up the batch
    max_batch: int  # sequences that decode at the same time
    kv_tokens: int  # tokens, prompts included, that fit the KV cache


@dataclass(slots=True, kw_only=True, eq=False)
class Decoding:
    """A request inside the replica, running or waiting."""

    request: Request
    noise: int  # what its writer draws from
    target_tokens: int  # where it ends by itself or at its bound
    reason: FinishReason  # which of the two
    submitted_s: float
    num_tokens: float  # generated so far; fractional between two steps
    spans: tuple[VersionSpan, ...]  # of the tokens up to the last load
    first_token_s: float | None = None

    @property
    def kv_tokens(self) -> float:
        return len(self.request.prompt_tokens) + self.num_tokens

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


class DecodingBatch:
    """Sequences that decode together, and those that wait for room."""

    def __init__(self, pace: Pace) -> None:
        self.num_preemptions = 0
        self.kv_tokens_max = 0.0
        self.tokens_generated = 0.0
        self.holds_new = False  # whether nothing is begun that has no token yet
        self._pace = pace
        self._running: list[Decoding] = []  # in the order of admission
        self._waiting: deque[Decoding] = deque()
        self._advanced_s = 0.0  # how far the simulation has come
        self._stall_s = 0.0  # prefill still to do before the batch decodes on

    @property
    def is_drained(self) -> bool:
        """Whether nothing is half done."""
        return not (self._running or any(sequence.is_begun for sequence in self._waiting))

    @property
    def sequences(self) -> tuple[Decoding, ...]:
        """All that have not ended, the running ones first."""
        return (*self._running, *self._waiting)

    def add(self, sequence: Decoding) -> None:
        self._waiting.append(sequence)

    def remove(self, sequence: Decoding) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def clear(self) -> None:
        """Forget every sequence, and what was counted since the last time."""
        self._running.clear()
        self._waiting.clear()
        self.begin_version()

    def recompute(self) -> None:
        """Prefill every sequence again, tokens and all."""
        self._waiting.extendleft(reversed(self._running))
        self._running.clear()

    def begin_version(self) -> None:
        """Begin what waits again, and forget what was counted."""
        self.holds_new = False
        self.num_preemptions = 0
        self.kv_tokens_max = 0.0

    def advance(self, now_s: float) -> list[Decoding]:
        """Account for the time since the last event: first the prefill, then decode steps of the
        batch as it was. Returns the sequences that ended, removed."""
        elapsed_s = now_s - self._advanced_s
        self._advanced_s = now_s
        if not self._running:
            return []
        stalled_s = min(elapsed_s, self._stall_s)
        self._stall_s -= stalled_s
        self._decode((elapsed_s - stalled_s) / self._step_s(), now_s)
        self.kv_tokens_max = max(self.kv_tokens_max, self._kv_tokens())
        ended = [
            sequence
            for sequence in self._running
            if sequence.num_tokens >= sequence.target_tokens - EPSILON
        ]
        for sequence in ended:
            self.remove(sequence)
        return ended

    def fill(self) -> None:
        """Make room, and give it to those that wait."""
        while len(self._running) > 1 and self._kv_tokens() >= self._pace.kv_tokens - EPSILON:
            self.num_preemptions += 1
            self._waiting.appendleft(self._running.pop())
        while self._waiting and self._may_begin(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._stall_s += self._pace.prefill_s_per_token * sequence.kv_tokens
            self._running.append(sequence)

    def seconds_to_event(self) -> float | None:
        """Until a sequence ends or the KV cache is full; None if nothing decodes."""
        if not self._running:
            return None
        return self._stall_s + self._steps_to_event() * self._step_s()

    def _decode(self, steps: float, now_s: float) -> None:
        for sequence in self._running:
            gained = min(steps, sequence.target_tokens - sequence.num_tokens)
            sequence.num_tokens += gained
            self.tokens_generated += gained
            if sequence.first_token_s is None and gained > 0:
                sequence.first_token_s = (
                    now_s - (steps - 1) * self._step_s() if steps > 1 else now_s
                )

    def _steps_to_event(self) -> float:
        to_end = min(sequence.target_tokens - sequence.num_tokens for sequence in self._running)
        if len(self._running) == 1:
            return to_end
        to_overflow = (self._pace.kv_tokens - self._kv_tokens()) / len(self._running)
        return min(to_end, max(to_overflow, 1.0))

    def _may_begin(self, sequence: Decoding) -> bool:
        return (sequence.is_begun or not self.holds_new) and self._has_room(sequence)

    def _has_room(self, sequence: Decoding) -> bool:
        """With a margin to grow into, so that a preempted sequence does not come back only to be
        preempted again."""
        if not self._running:
            return True
        margin = self._pace.kv_tokens / 20
        fits = self._kv_tokens() + sequence.kv_tokens + margin <= self._pace.kv_tokens
        return fits and len(self._running) < self._pace.max_batch

    def _step_s(self) -> float:
        return self._pace.step_s + self._pace.step_s_per_sequence * (len(self._running) - 1)

    def _kv_tokens(self) -> float:
        return sum(sequence.kv_tokens for sequence in self._running)
