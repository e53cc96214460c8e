"""Hands a round's responses out a few at a time, those that may take longest first (Seer, section
4; RhymeRL's and SortedRL's order).

    scheduler ── launches ──▶ waiting ── a place is free ──▶ engines ── finished, lost ─▶ a place
                                 ▲                              │
                                 └── the longest answer so far ─┘

What comes next is a first response of a prompt of which nothing is known, in launch order, and then
a response of the prompt whose longest answer is longest: of the round, or of an earlier epoch
(`expected_tokens`). A prompt whose first response still runs counts as the longest. Wraps any
scheduler, which decides as it would alone: to it, what waits runs. Pure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from tasks.scheduling.events import (
    Abort,
    CloseRound,
    Decision,
    Event,
    Finished,
    Launch,
    Lost,
    RoundPlan,
    RoundScheduler,
)


class LongestFirst:
    """A scheduler of which at most so many responses are under way."""

    def __init__(self, scheduler: RoundScheduler, plan: RoundPlan, most_under_way: int) -> None:
        assert most_under_way > 0, "a round of which nothing may be asked would not end"
        self._scheduler = scheduler
        self._most_under_way = most_under_way
        self._waiting: dict[str, deque[Launch]] = {}  # by prompt, in launch order
        self._under_way: set[tuple[str, int]] = set()
        self._begun: set[str] = set()  # prompts of which a response was asked
        self._longest = {  # tokens, by prompt
            ref.prompt_id: tokens
            for ref, tokens in zip(plan.candidates, plan.expected_tokens, strict=False)
            if tokens
        }

    def start(self) -> list[Decision]:
        return self._pace(self._scheduler.start())

    def handle(self, event: Event) -> list[Decision]:
        name = event.prompt_id
        if isinstance(event, Finished | Lost):
            self._under_way.discard((name, event.index))
        if isinstance(event, Finished):
            self._longest[name] = max(event.num_tokens, self._longest.get(name, 0))
        return self._pace(self._scheduler.handle(event))

    def waiting_for(self) -> str:
        num_waiting = sum(map(len, self._waiting.values()))
        return f"{self._scheduler.waiting_for()}; {num_waiting} responses wait for their turn"

    def _pace(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions, with the launches whose turn it is in place of those that were made."""
        kept: list[Decision] = []
        for decision in decisions:
            match decision:
                case Launch(prompt_id=prompt_id):
                    self._waiting.setdefault(prompt_id, deque()).append(decision)
                case Abort(prompt_id=prompt_id, indices=indices):
                    kept += self._stop(prompt_id, indices)
                case _:
                    kept.append(decision)
        is_over = any(isinstance(decision, CloseRound) for decision in kept)
        return kept if is_over else [*self._released(), *kept]

    def _stop(self, prompt_id: str, indices: Iterable[int]) -> list[Abort]:
        """Nobody wants these any more; the abort of those that are under way."""
        unwanted = {*indices}
        waiting = self._waiting.pop(prompt_id, deque())
        left = deque(launch for launch in waiting if launch.index not in unwanted)
        if left:
            self._waiting[prompt_id] = left
        running = tuple(index for index in indices if (prompt_id, index) in self._under_way)
        self._under_way -= {(prompt_id, index) for index in running}
        return [Abort(prompt_id=prompt_id, indices=running)] if running else []

    def _released(self) -> list[Launch]:
        """What may be asked now."""
        released: list[Launch] = []
        while self._waiting and len(self._under_way) < self._most_under_way:
            launch = self._next()
            self._under_way.add((launch.prompt_id, launch.index))
            released.append(launch)
        return released

    def _next(self) -> Launch:
        unknown = (name for name in self._waiting if self._is_unknown(name))
        name = next(unknown, None) or max(self._waiting, key=self._expected)
        self._begun.add(name)
        launch = self._waiting[name].popleft()
        if not self._waiting[name]:
            del self._waiting[name]
        return launch

    def _is_unknown(self, name: str) -> bool:
        return name not in self._begun and name not in self._longest

    def _expected(self, name: str) -> float:
        """Tokens; without bound as long as none of its answers is there."""
        return self._longest.get(name, math.inf)
