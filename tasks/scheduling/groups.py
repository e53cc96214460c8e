"""The states of one prompt's responses during a round: bookkeeping for every round scheduler.

    launched -> running -> unscored -> valid      (a verdict: counts towards the group)
                   |           └-----> another response takes its place, a bounded number of times
                   └-> lost with its engine: launched again under the same index

Leaves out which groups a round takes; that is the scheduler's decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from tasks.scheduling.events import (
    Abort,
    Event,
    Finished,
    Launch,
    Lost,
    PromptRef,
    RoundPlan,
    Scored,
)


class GroupProgress:
    """The responses of one prompt of a round, by state: running, unscored, or valid."""

    def __init__(self, ref: PromptRef, plan: RoundPlan) -> None:
        self.ref = ref
        # whether the group is still wanted; a closed one launches nothing and can no longer be
        # completed by running responses
        self.is_open = True
        self.oldest_version = 0  # of the weights that may generate its responses
        self._needed = plan.accept_per_prompt
        self._at_first = plan.launch_per_prompt
        self._next_index = 0
        self._replacements_left = plan.max_replacements
        self._running: dict[int, None] = {}  # a set that keeps its order
        self._unscored: set[int] = set()
        self._valid: dict[int, float] = {}  # rewards, in the order in which they came

    def begin(self) -> list[Launch]:
        """Launch as many responses as the round launches of every prompt; no effect if any were
        launched before."""
        return [] if self._next_index else self.launch(self._at_first)

    def launch(self, num_responses: int) -> list[Launch]:
        """Launch this many further responses, under indices not used before."""
        return self.go_on(range(self._next_index, self._next_index + num_responses))

    def go_on(self, indices: Sequence[int], num_used: int = 0) -> list[Launch]:
        """Launch the responses with these indices. Later launches get indices above these, and not
        below num_used."""
        self._next_index = max(num_used, max(indices) + 1)
        self._running.update(dict.fromkeys(indices))
        return [self._launched(index) for index in indices]

    def handle(self, event: Event) -> list[Launch]:
        """Record an event; returns the launches that replace a lost or unscored response. Repeated
        events change nothing."""
        match event:
            case Finished(index=index):
                self._finish(index)
            case Scored(index=index, reward=reward):
                return self._score(index, reward)
            case Lost(index=index):
                if index in self._running and self.is_open:
                    return [self._launched(index)]
                self._running.pop(index, None)
        return []

    def _finish(self, index: int) -> None:
        if index in self._running:
            del self._running[index]
            self._unscored.add(index)

    def _score(self, index: int, reward: float | None) -> list[Launch]:
        self._finish(index)
        if index not in self._unscored:
            return []
        self._unscored.remove(index)
        if reward is not None:
            self._valid[index] = reward
            return []
        if not self.is_open or self._num_live() >= self._needed or self._replacements_left == 0:
            return []
        self._replacements_left -= 1
        return list(self.launch(1))

    def _launched(self, index: int) -> Launch:
        oldest = self.oldest_version
        return Launch(prompt_id=self.ref.prompt_id, index=index, oldest_version=oldest)

    def _num_live(self) -> int:
        return len(self._running) + len(self._unscored) + len(self._valid)

    @property
    def num_running(self) -> int:
        """Number of responses that are being generated."""
        return len(self._running)

    @property
    def num_valid(self) -> int:
        """Number of responses with a reward, at most as many as a trained group needs."""
        return min(len(self._valid), self._needed)

    @property
    def may_be_flat(self) -> bool:
        """True if no two known rewards differ among the responses that would be trained."""
        return len(set(islice(self._valid.values(), self._needed))) <= 1

    @property
    def is_complete(self) -> bool:
        """True if as many responses have a reward as a trained group needs."""
        return len(self._valid) >= self._needed

    @property
    def is_hopeless(self) -> bool:
        """True if an open group can no longer be completed, because too many verdicts failed."""
        return self.is_open and self._num_live() < self._needed

    def accepted_indices(self) -> tuple[int, ...]:
        """Indices, ascending, of the responses to train: the first that got a verdict, as many as a
        trained group needs."""
        return tuple(sorted(islice(self._valid, self._needed)))

    @property
    def is_flat(self) -> bool:
        """True if the group is complete and all rewards that would be trained are the same."""
        return self.is_complete and self.may_be_flat

    def close(self) -> list[Abort]:
        """Close the group; returns the abort of its running responses, if there are any."""
        self.is_open = False
        running = tuple(self._running)
        self._running = {}
        return [Abort(prompt_id=self.ref.prompt_id, indices=running)] if running else []

    def describe(self) -> str:
        return (
            f"{self.ref.prompt_id} ({len(self._valid)} of {self._needed} scored,"
            f" {len(self._running)} running, {len(self._unscored)} unscored)"
        )


def describe_missing(groups: Iterable[GroupProgress], num_missing: int, limit: int = 4) -> str:
    """Describe the groups that a round still waits for, in one sentence."""
    waiting = [group.describe() for group in groups]
    more = f" and {len(waiting) - limit} more" if len(waiting) > limit else ""
    return f"{num_missing} groups are missing; undecided: {', '.join(waiting[:limit])}{more}"
