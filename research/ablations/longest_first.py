"""Longest first, to compare with: synchronous steps whose responses wait for their turn, so that
those that may take longest do not begin last (Seer, section 4; RhymeRL's and SortedRL's order).

    turn ── the next P0 prompts x R0 responses ──▶ a few at a time ──▶ all trained
    under_way     how many: what the caches hold without preempting any
    moves_running divided rollouts (Seer): what runs goes on wherever there is less to do

The rivals that order a step instead of choosing within it: Seer goes by a prompt's first answer,
RhymeRL and SortedRL by what it took in an earlier epoch; both are known here once they are there.
On-policy, without a bias: every step trains exactly what it launches. Leaves out Seer's drafts from
the siblings of a response.

    scheduler ── launches ──▶ waiting ── a slot is free ──▶ engines ── finished, lost ─▶ a slot
                                 ▲                              │
                                 └── the longest answer so far ─┘

What comes next is a first response of a prompt of which nothing is known, in launch order, and then
a response of the prompt whose longest answer is longest: of the round, or of an earlier epoch
(`expected_tokens`). A prompt whose first response still runs counts as the longest. Pure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.scheduling.batch import BatchAlgebra, BatchConfig, round_shape, times
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
from tasks.scheduling.policies.base import DYNAMIC_SAMPLING, PlanningInputs
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.wait_for_all import WaitForAll

ORDERED = "ordered"


class LongestFirstConfig(BaseModel):
    """Synchronous steps that ask a few responses at a time, of long prompts first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["longest_first"] = Field(
        "longest_first",
        description=(
            "Synchronous steps whose responses wait for their turn, those of long prompts first."
        ),
    )
    under_way: float = Field(
        0.5,
        gt=0,
        le=1,
        description=(
            "Share of a step's responses that are asked at a time; 1 asks all at once, long prompts"
            " first: an engine begins what it is asked in that order."
        ),
    )
    moves_running: bool = Field(
        True,
        description="Move running responses to engines that have less to do (`balancing`).",
    )
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=DYNAMIC_SAMPLING)

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """One kind of round, which trains what it launches."""
        return BatchAlgebra(
            rounds=(round_shape(ORDERED, batch),),
            reserve_prompts=times(self.dynamic_sampling, batch.prompts_per_step),
            under_way=self.under_way,
            streaming_needs=(
                "a scheduling.kind that asks all of a round at once, got 'longest_first': what"
                " waits for its turn would find its engine gone"
            ),
        )

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """New prompts in every step, with what earlier epochs know of them."""
        plan = SyncConfig(dynamic_sampling=self.dynamic_sampling).plan_round(turn)
        if plan is None:
            return None
        known = turn.state.answer_tokens
        expected = tuple(known.get(ref.row, 0) for ref in plan.candidates)
        return replace(
            plan,
            kind=ORDERED,
            layout=ORDERED,
            expected_tokens=expected,
            balances=self.moves_running,
        )

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """Everything launched is waited for, and most of it waits itself."""
        num_responses = len(plan.prompts) * plan.launch_per_prompt
        return LongestFirst(WaitForAll(plan), plan, times(self.under_way, num_responses))


class LongestFirst:
    """A scheduler of which at most so many responses are under way. Wraps any scheduler, which
    decides as it would alone: to it, what waits runs."""

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
