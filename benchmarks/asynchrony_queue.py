"""A queue, a learner and a bound, in a program of its own: what the simulated asynchrony is held
against where it differs from the published figures of such a model.

    python -m benchmarks.asynchrony_queue --steps 100

    admitted groups ─▶ slots, first come first served ─▶ complete groups ─▶ learner ─▶ version
                            given up at the deadline ◀──────────┘

It shares with the simulated system the draws of its lengths and nothing else: no driver, no policy,
no engine. What it assumes can be changed, one rule at a time, so that a difference can be put down
to a rule. Leaves out verdicts, loading, and what is still parked after the last step.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count

from rich.console import Console
from rich.table import Table

from benchmarks.asynchronous_simulated import (
    BATCH,
    RATIOS,
    SLOTS,
    STEP_S,
    TRAIN_S,
    ExponentialWriter,
)
from tasks.scheduling.asynchronous_round import AtDeadline
from tasks.scheduling.prompt_stream import draw_prompts
from tasks.scheduling.seeds import derive_seed

NUM_GROUPS, NUM_RESPONSES = BATCH.prompts_per_step, BATCH.responses_per_prompt
MOST_GROUPS = 10_000

Seconds = Callable[[int], Sequence[float]]  # of the responses of a group, by its number


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the model assumes. The defaults are those that give the published figures."""

    async_ratio: float
    at_deadline: AtDeadline = "wait"
    # whether what runs of a group that is given up frees its slots at once; else it runs to its end
    stops_given_up: bool = False
    # whether a step takes its groups, and gives up others, while earlier ones still train
    closes_ahead: bool = False
    # whether a step takes the complete groups of the nearest deadline first; else those that were
    # complete first
    nearest_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What the model says of a run."""

    seconds: float  # a step
    trained_s: float  # mean length of what was trained
    lost_share: float  # dropped or parked groups, of those that were trained


@dataclass(slots=True, eq=False)
class _Group:
    number: int
    version: int  # at its dispatch
    is_returned: bool  # whether it was parked before
    num_left: int = NUM_RESPONSES
    is_given_up: bool = False


@dataclass(slots=True)
class QueueModel:
    """A run of so many steps."""

    rules: Rules
    seconds_of: Seconds
    num_steps: int
    _now_s: float = 0.0
    _version: int = 0
    _step: int = 1  # the next to take its groups
    _num_admitted: int = 0  # trained and undecided
    _num_lost: int = 0
    _trained_s: list[float] = field(default_factory=list)  # lengths
    _undecided: list[_Group] = field(default_factory=list)
    _complete: list[_Group] = field(default_factory=list)  # undecided, in the order of completion
    _parked: list[int] = field(default_factory=list)
    _returning: deque[int] = field(default_factory=deque)
    _fresh: Iterator[int] = field(default_factory=count)
    _waiting: deque[tuple[_Group, float]] = field(default_factory=deque)  # responses for a slot
    _running: list[tuple[float, int, _Group]] = field(default_factory=list)  # a heap, by end
    _order: Iterator[int] = field(default_factory=count)
    _training: deque[float] = field(default_factory=deque)  # ends of steps not yet published

    def play(self) -> Queued:
        self._admit()
        while self._step <= self.num_steps:
            self._advance()
            self._take()
            self._fill()
        return Queued(
            seconds=self._training[-1] / self.num_steps,
            trained_s=sum(self._trained_s) / len(self._trained_s),
            lost_share=self._num_lost / (self.num_steps * NUM_GROUPS),
        )

    def _advance(self) -> None:
        """Come to the next end of a response or of a training step."""
        if self._training and (not self._running or self._training[0] <= self._running[0][0]):
            self._now_s = self._training.popleft()
            self._version += 1
            self._admit()
            return
        self._now_s, _, group = heapq.heappop(self._running)
        group.num_left -= 1
        if not (group.num_left or group.is_given_up):
            self._complete.append(group)

    def _admit(self) -> None:
        ahead = math.floor((self.rules.async_ratio + self._version + 1) * NUM_GROUPS)
        while self._num_admitted < min(ahead, self.num_steps * NUM_GROUPS):
            is_returned = bool(self._returning)
            number = self._returning.popleft() if is_returned else next(self._fresh)
            group = _Group(number, self._version, is_returned)
            self._num_admitted += 1
            self._undecided.append(group)
            self._waiting.extend((group, seconds) for seconds in self.seconds_of(number))
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < SLOTS:
            group, seconds = self._waiting.popleft()
            if not group.is_given_up:
                heapq.heappush(self._running, (self._now_s + seconds, next(self._order), group))

    def _take(self) -> None:
        """Take the groups of as many steps as can have theirs."""
        while self._step <= self.num_steps and self._can_take():
            if self.rules.nearest_first:
                self._complete.sort(key=lambda group: group.version)
            for group in self._complete[:NUM_GROUPS]:
                self._undecided.remove(group)
                self._trained_s += self.seconds_of(group.number)
            del self._complete[:NUM_GROUPS]
            begins_s = max([self._now_s, *list(self._training)[-1:]])
            self._training.append(begins_s + TRAIN_S)
            for group in [group for group in self._undecided if self._is_late(group)]:
                if not self._is_waited_for(group):
                    self._give_up(group)
            if len(self._parked) >= NUM_GROUPS:
                self._returning.extend(self._parked[:NUM_GROUPS])
                del self._parked[:NUM_GROUPS]
            self._step += 1
            self._admit()

    def _can_take(self) -> bool:
        if self._training and not self.rules.closes_ahead:
            return False
        late = (group for group in self._undecided if self._is_late(group))
        are_due_complete = not any(group.num_left and self._is_waited_for(group) for group in late)
        return are_due_complete and len(self._complete) >= NUM_GROUPS

    def _is_late(self, group: _Group) -> bool:
        return group.version + 1 + math.ceil(self.rules.async_ratio) <= self._step

    def _is_waited_for(self, group: _Group) -> bool:
        match self.rules.at_deadline:
            case "wait":
                return True
            case "park":
                return group.is_returned
        return False

    def _give_up(self, group: _Group) -> None:
        if self.rules.at_deadline == "train_anyway":
            return
        group.is_given_up = True
        self._undecided.remove(group)
        if group in self._complete:
            self._complete.remove(group)
        self._num_admitted -= 1
        self._num_lost += 1
        if self.rules.at_deadline == "park":
            self._parked.append(group.number)
        if self.rules.stops_given_up:
            self._running = [ending for ending in self._running if ending[2] is not group]
            heapq.heapify(self._running)


def drawn_seconds(long_share: float) -> Seconds:
    """The lengths that the simulated system draws: of its groups in the order of their prompts."""
    writer = ExponentialWriter(long_share)
    prompts = draw_prompts(("any",) * 100_000, 0, 0, MOST_GROUPS)

    @cache
    def seconds(number: int) -> tuple[float, ...]:
        prompt_id = prompts[number].prompt_id
        seeds = (derive_seed(0, prompt_id, index) for index in range(NUM_RESPONSES))
        return tuple(writer.drawn(seed) * STEP_S for seed in seeds)

    return seconds


VARIANTS: dict[str, dict[str, bool]] = {
    "as published": {},
    "given up: stops": {"stops_given_up": True},
    "and closes ahead": {"stops_given_up": True, "closes_ahead": True},
    "and first complete first": {
        "stops_given_up": True,
        "closes_ahead": True,
        "nearest_first": False,
    },
}


def rows(num_steps: int, long_share: float) -> Iterator[tuple[str, ...]]:
    """Speed-up over synchronous steps and trained lengths by the rules, for every ratio and every
    policy at the deadline."""
    seconds_of = drawn_seconds(long_share)

    def played(rules: Rules) -> Queued:
        return QueueModel(rules, seconds_of, num_steps).play()

    plain = played(Rules(async_ratio=0.0))
    choices: tuple[AtDeadline, ...] = ("wait", "train_anyway", "drop", "park")
    for at_deadline in choices:
        for ratio in RATIOS:
            found = [
                played(Rules(async_ratio=ratio, at_deadline=at_deadline, **variant))
                for variant in VARIANTS.values()
            ]
            cells = (
                f"{plain.seconds / run.seconds:.2f}, {run.trained_s / plain.trained_s:.2f}"
                for run in found
            )
            yield at_deadline, f"{ratio:g}", *cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    num_steps = parser.parse_args().steps
    for tail, long_share in (("light", 0.0), ("heavy", 0.05)):
        table = Table("at deadline", "ratio", *VARIANTS, title=f"{tail}: speed-up, length")
        for row in rows(num_steps, long_share):
            table.add_row(*row)
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
