"""The batch of a simulated replica: the sequences that decode, those that wait for room, and the
time of the next event. Pure: the time is passed in.

    add, remove ─▶ fill: preempt what does not fit, admit what does ─▶ seconds_to_event
    ─▶ advance(now): the sequences that have ended since ─▶ ...

Every decoding sequence gains one token per decode step (`pace`). When the KV cache is full, the
sequence admitted last is preempted: it waits and is prefilled again. Nothing changes between two
events, so a batch jumps from one to the next, at the cost of the logarithm of the number of running
sequences: their ends lie in a heap ordered by step count, and sums are kept up to date.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from heapq import heappop, heappush
from itertools import count

from tasks.engines.simulation.decoding import EPSILON, Decoding, StepCount
from tasks.engines.simulation.pace import Pace


class KvCache:
    """Occupancy of the KV cache: the tokens that it holds, and those that a step reads."""

    def __init__(self, count: StepCount, shares_prompts: bool) -> None:
        """shares_prompts: whether the responses to one prompt share a single copy of it."""
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
        """Tokens that occupy the cache."""
        return self._held_at_zero + self.num_decoding * self._count.steps

    @property
    def read_tokens(self) -> float:
        """Tokens that a decode step reads; a shared prompt once for each of its responses."""
        return self._read_at_zero + self.num_decoding * self._count.steps

    def missing_tokens(self, sequence: Decoding) -> float:
        """Tokens that would have to be prefilled to admit a waiting sequence."""
        is_shared = self._shares_prompts and self._holders[sequence.request.prompt_id]
        return sequence.num_settled + (0 if is_shared else sequence.num_prompt_tokens)

    def enter(self, sequence: Decoding) -> None:
        """Give the sequence its room in the cache."""
        self._held_at_zero += self.missing_tokens(sequence)
        self._holders[sequence.request.prompt_id] += 1

    def begin(self, sequence: Decoding) -> None:
        """Count the sequence as decoding: it grows by a token a step from now on."""
        self.num_decoding += 1
        self._held_at_zero -= sequence.began_steps
        self._read_at_zero += self._read_part(sequence)

    def leave(self, sequence: Decoding) -> None:
        """Free the sequence's room; it decodes no longer. Call this before `sequence.stop()`."""
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


class DecodingBatch:
    """The sequences that decode together, and those that wait for room in the KV cache."""

    def __init__(self, pace: Pace, report_tokens: int = 0) -> None:
        """report_tokens: decode steps between two reports; 0 for none."""
        self.num_preemptions = 0
        self.kv_tokens_max = 0.0
        self.tokens_generated = 0.0
        self.holds_new = False  # whether sequences without a token must not begin
        self._pace = pace
        self._count = StepCount()
        self._cache = KvCache(self._count, pace.shares_prompts)
        # what holds room, in the order of admission; and of that what prefills, with the work left
        self._running: OrderedDict[Decoding, int] = OrderedDict()
        self._prefilling: OrderedDict[Decoding, float] = OrderedDict()
        self._waiting: OrderedDict[Decoding, None] = OrderedDict()
        self._ends: list[tuple[float, int, Decoding]] = []  # a heap; some have left meanwhile
        self._new: list[Decoding] = []  # decode, and have no token of this replica yet
        self._admissions = count()
        self._advanced_s = 0.0  # how far the simulation has come
        self._stall_s = 0.0  # prefill still to do before the batch decodes on
        self._prefill_work = 0.0  # of all that prefill in shared steps
        self._report_tokens = report_tokens or math.inf
        self._unreported = 0.0  # decode steps since the last report

    @property
    def is_drained(self) -> bool:
        """True if no sequence is half done: all have either ended or not begun."""
        return not (self._running or any(sequence.is_begun for sequence in self._waiting))

    @property
    def sequences(self) -> tuple[Decoding, ...]:
        """All sequences that have not ended, the running ones first."""
        return (*self._running, *self._waiting)

    def add(self, sequence: Decoding) -> None:
        self._waiting[sequence] = None

    def remove(self, sequence: Decoding) -> None:
        if sequence in self._running:
            self._leave(sequence)
        else:
            del self._waiting[sequence]

    def clear(self) -> None:
        """Forget every sequence, and reset the counters of this weight version."""
        self._reset()
        self._waiting.clear()
        self.begin_version()

    def recompute(self) -> None:
        """Have every running sequence wait and be prefilled again, generated tokens included."""
        for sequence in reversed(self._running):
            self._waiting[sequence] = None
            self._waiting.move_to_end(sequence, last=False)
            sequence.stop()
        self._reset()

    def begin_version(self) -> None:
        """New weights: let held sequences begin again, and reset the counters."""
        self.holds_new = False
        self.num_preemptions = 0
        self.kv_tokens_max = 0.0

    def advance(self, now_s: float) -> list[Decoding]:
        """Account for the time since the last event: first the prefill that holds the batch up,
        then decode steps of the batch as it was. Returns the sequences that ended; the batch no
        longer has them."""
        elapsed_s = now_s - self._advanced_s
        began_s, self._advanced_s = self._advanced_s, now_s
        if not self._running:
            return []
        stalled_s = min(elapsed_s, self._stall_s)
        self._stall_s -= stalled_s
        cache = self._cache
        steps = self._pace.steps_in(
            elapsed_s - stalled_s, cache.num_decoding, cache.read_tokens, self._chunk()
        )
        if steps > 0:
            self._note_first_tokens(began_s + stalled_s, steps)
            prefilled = steps * self._chunk()
            self._count.steps += steps
            self._unreported += steps
            self.tokens_generated += self._cache.num_decoding * steps
            if self._prefilling:
                self._prefill(prefilled)
        self.kv_tokens_max = max(self.kv_tokens_max, self._cache.held_tokens)
        return self._pop_ended()

    def take_report(self) -> list[Decoding]:
        """Return the sequences with unreported tokens if a report is due; else an empty list."""
        if self._unreported < self._report_tokens - EPSILON:
            return []
        self._unreported = 0.0
        return [
            sequence for sequence in self.sequences if sequence.whole_tokens > sequence.num_reported
        ]

    def fill(self) -> None:
        """Preempt sequences while the cache is full, then admit waiting ones while they fit."""
        noise = EPSILON * max(1, self._cache.num_decoding)
        while len(self._running) > 1 and self._cache.held_tokens >= self._pace.kv_tokens - noise:
            last = next(reversed(self._running))
            self.num_preemptions += 1
            self._leave(last)
            self._waiting[last] = None
            self._waiting.move_to_end(last, last=False)
            noise = EPSILON * max(1, self._cache.num_decoding)
        while self._waiting and self._may_begin(next(iter(self._waiting))):
            self._admit(self._waiting.popitem(last=False)[0])

    def seconds_to_event(self) -> float | None:
        """Seconds until a sequence ends or is prefilled, a report is due or the KV cache is full;
        None if no sequence runs."""
        if not self._running:
            return None
        return self._stall_s + self._steps_s(self._steps_to_event())

    def _admit(self, sequence: Decoding) -> None:
        work = self._pace.prefill_work(self._cache.missing_tokens(sequence))
        self._running[sequence] = next(self._admissions)
        self._cache.enter(sequence)
        if self._pace.chunk_tokens and work:
            self._prefilling[sequence] = work
            self._prefill_work += work
        else:
            self._stall_s += self._pace.prefill_s_per_token * work
            self._begin(sequence)

    def _begin(self, sequence: Decoding) -> None:
        sequence.begin(self._count)
        self._cache.begin(sequence)
        ends_at_steps = sequence.began_steps + sequence.target_tokens - sequence.num_settled
        heappush(self._ends, (ends_at_steps, self._running[sequence], sequence))
        if sequence.first_token_s is None:
            self._new.append(sequence)

    def _leave(self, sequence: Decoding) -> None:
        """Free the sequence's room; it keeps its tokens."""
        self._prefill_work -= self._prefilling.pop(sequence, 0.0)
        self._cache.leave(sequence)
        sequence.stop()
        del self._running[sequence]
        if not self._running:
            self._reset()

    def _reset(self) -> None:
        """Empty the running batch and set all sums to exactly zero, without float noise."""
        self._running.clear()
        self._prefilling.clear()
        self._ends.clear()
        self._new.clear()
        self._cache.clear()
        self._count.steps = self._stall_s = self._prefill_work = 0.0

    def _prefill(self, work: float) -> None:
        """Spend this work on prefilling; sequences that are prefilled begin to decode."""
        noise = EPSILON * self._pace.chunk_tokens
        while self._prefilling:
            sequence, left = next(iter(self._prefilling.items()))
            done = min(left, work)
            work -= done
            self._prefill_work -= done
            if left - done > noise:
                self._prefilling[sequence] = left - done
                return
            self._prefill_work -= left - done
            del self._prefilling[sequence]
            self._begin(sequence)
        self._prefill_work = 0.0

    def _note_first_tokens(self, began_s: float, steps: float) -> None:
        """Record when the new sequences got their first token."""
        if not self._new:
            return
        first_s = began_s + self._steps_s(min(1.0, steps))
        for sequence in self._new:
            if sequence.count is not None:
                sequence.first_token_s = first_s
        self._new.clear()

    def _pop_ended(self) -> list[Decoding]:
        """Remove and return the sequences that have reached their ends, as admitted."""
        ended: list[tuple[int, Decoding]] = []
        while self._ends and self._ends[0][0] <= self._count.steps + EPSILON:
            end, admission, sequence = heappop(self._ends)
            if self._running.get(sequence) == admission:
                self.tokens_generated -= self._count.steps - end
                ended.append((admission, sequence))
        for _, sequence in sorted(ended, key=lambda pair: pair[0]):
            self._leave(sequence)
            sequence.num_settled = sequence.target_tokens
        return [sequence for _, sequence in sorted(ended, key=lambda pair: pair[0])]

    def _steps_to_event(self) -> float:
        while self._ends and self._running.get(self._ends[0][2]) != self._ends[0][1]:
            heappop(self._ends)
        steps = self._ends[0][0] - self._count.steps if self._ends else math.inf
        steps = min(steps, self._report_tokens - self._unreported)
        if self._prefilling:
            left = next(iter(self._prefilling.values()))
            steps = min(steps, max(1.0, math.floor(left / self._chunk() + EPSILON)))
        if len(self._running) == 1 or not self._cache.num_decoding:
            return steps
        room = self._pace.kv_tokens - self._cache.held_tokens
        return min(steps, max(1.0, math.ceil(room / self._cache.num_decoding - EPSILON)))

    def _may_begin(self, sequence: Decoding) -> bool:
        """True if it fits with a margin to grow into, so that it is not preempted at once."""
        if self.holds_new and not sequence.is_begun:
            return False
        if not self._running:
            return True
        room = self._pace.kv_tokens * (1 - self._pace.kv_margin)
        fits = self._cache.held_tokens + self._cache.missing_tokens(sequence) <= room
        return fits and len(self._running) < self._pace.max_batch

    def _chunk(self) -> float:
        """Work that the next step prefills beside decoding."""
        if not self._prefilling:
            return 0.0
        return self._pace.chunk(self._cache.num_decoding, self._prefill_work)

    def _steps_s(self, steps: float) -> float:
        cache = self._cache
        return self._pace.steps_s(steps, cache.num_decoding, cache.read_tokens, self._chunk())
