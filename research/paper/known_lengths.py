"""A workload whose rows are asked in the order of how long they take, those with the shortest
longest answer first: what a scheduler could do that knew all lengths before it asks.

    row k ──▶ the row of `work` that is k-th by its longest answer

Every round of `sync` on it, where rows are asked as they stand, waits for groups that take about as
long, gives nothing up and favours no length. Lengths are those of the first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from artifacts.prompt_ids import row_of
from tasks.engines.simulation.writers import Lengths
from tasks.scheduling.prompt_stream import derive_seed
from tasks.simulation.protocols import GradientWork
from tasks.simulation.reward_queue import RewardTimes
from tasks.simulation.workloads import QueuedFeed, Workload, blank_question


@dataclass(frozen=True, kw_only=True)
class ShortestFirst:
    """The first rows of a workload by another name each (`RunWork`)."""

    work: Workload
    num_rows: int
    num_responses: int  # to a prompt
    seed: int  # of the run

    @property
    def longest_tokens(self) -> int:
        """Bound on a response."""
        return self.work.longest_tokens

    def domains(self, num_rows: int) -> tuple[str, ...]:
        """The domain of every row."""
        if num_rows != self.num_rows:
            raise ValueError(
                f"a run must ask for the {self.num_rows} rows that were put in order, this one asks"
                f" for {num_rows}; set num_rows to as many, for two steps at least"
            )
        return tuple(self.work.part_of(self._meant(f"0/{row}")).name for row in range(num_rows))

    def prompt_tokens(self, prompt_id: str) -> int:
        """The length of a prompt."""
        return self.work.prompt_tokens(self._meant(prompt_id))

    def question(self, prompt_id: str) -> tuple[int, ...]:
        return blank_question(prompt_id, self.prompt_tokens(prompt_id))

    def writer(self, step: int, seed: int) -> Lengths:
        """The lengths of the responses of a step."""
        return _Renamed(self, self.work.writer(step, seed))

    def feed(self, machine: Any, seed: int) -> QueuedFeed:  # Any: its rewards have their own
        """The reward stage of a run."""
        return QueuedFeed(self, self.work.workers, seed)

    def gradients(self, seed: int) -> GradientWork:
        """What its groups cost the learner."""
        return self.work.gradients(seed)

    def reward_of(self, prompt_id: str) -> RewardTimes:
        """What scores the responses to a prompt."""
        return self.work.reward_of(self._meant(prompt_id))

    def is_right(self, seed: int, prompt_id: str, index: int) -> bool:
        """Whether a response that ends by itself is."""
        return self.work.is_right(seed, self._meant(prompt_id), index)

    def tokens(self, lengths: Lengths, prompt_id: str, index: int) -> int:
        """The length that the response has under the name that is meant."""
        return self._length(lengths, self._meant(prompt_id), index)

    def _meant(self, prompt_id: str) -> str:
        return self._names[row_of(prompt_id)]

    @cached_property
    def _names(self) -> list[str]:
        """By row."""
        lengths = self.work.writer(1, self.seed)

        def longest(name: str) -> int:
            responses = range(self.num_responses)
            return max(self._length(lengths, name, index) for index in responses)

        return sorted((f"0/{row}" for row in range(self.num_rows)), key=longest)

    def _length(self, lengths: Lengths, name: str, index: int) -> int:
        return lengths.tokens(name, index, derive_seed(self.seed, name, index))


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Lengths of one step."""

    rows: ShortestFirst
    lengths: Lengths

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        """The noise is that of the name that is meant."""
        return self.rows.tokens(self.lengths, prompt_id, index)
