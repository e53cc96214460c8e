"""The progress of a round while it runs, from the events and decisions of its scheduler. Pure.

driver ── events ──▶ ObservedScheduler ──▶ scheduler
       ◀─ decisions ──      │        ◀──
                            └─▶ RoundProgress: groups that are accepted, what waits, what runs
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    Carry,
    Decision,
    Defer,
    Drop,
    Event,
    Filter,
    Finished,
    Launch,
    Lost,
    OverlappedScheduler,
    Published,
    RoundPlan,
    RoundScheduler,
    Scored,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProgress:
    """The progress of a round at one moment: numbers of its groups and responses."""

    step: int  # the step that the round belongs to
    num_wanted: int  # groups that the round is to accept
    num_accepted: int  # groups that the round has accepted
    num_complete: int  # groups that have all verdicts which they need, and wait for a slot
    num_undecided: int  # dispatched groups, neither accepted nor given up; complete ones included
    num_carried: int  # of the undecided, groups that an earlier round began
    num_running: int  # responses on the engines
    num_unscored: int  # finished responses that wait for their verdict
    # the newest version in all engines; None of a round during which none is published
    version: int | None = None
    is_evaluation: bool = False  # whether it asks held-out prompts, after the step
    lag: float | None = None  # mean lag of the accepted responses, versions; None before any

    @property
    def is_full(self) -> bool:
        """True if the round has accepted all of its groups."""
        return self.num_accepted >= self.num_wanted

    @property
    def do_engines_wait(self) -> bool:
        """True if nothing more happens in the round until newer weights are published."""
        is_quiet = not (self.num_running or self.num_unscored or self.is_full)
        return is_quiet and self.version is not None and self.version < self.step - 1

    @property
    def does_learner_wait(self) -> bool:
        """True if all earlier steps are published, and groups of the round are missing."""
        return self.version == self.step - 1 and not self.is_full


class ObservedScheduler:
    """Passes another scheduler's decisions on unchanged, and records the round's progress."""

    def __init__(self, scheduler: RoundScheduler, plan: RoundPlan) -> None:
        self._scheduler = scheduler
        self._plan = plan
        self._version = plan.admission.version if plan.admission else None
        self._earlier = {ref.prompt_id for ref in plan.prompts[: plan.num_carried]}
        self._num_accepted = 0
        self._undecided: set[str] = set()
        self._num_valid: Counter[str] = Counter()  # verdicts with a reward, by prompt
        self._running: set[tuple[str, int]] = set()
        self._unscored: set[tuple[str, int]] = set()

    def start(self) -> list[Decision]:
        return self._note(self._scheduler.start())

    def handle(self, event: Event) -> list[Decision]:
        name = event.prompt_id, event.index
        match event:
            case Finished():
                self._running.discard(name)
                self._unscored.add(name)
            case Scored(reward=reward):
                self._unscored.discard(name)
                self._num_valid[event.prompt_id] += reward is not None
            case Lost():
                self._running.discard(name)
        return self._note(self._scheduler.handle(event))

    def publish(self, event: Published) -> list[Decision]:
        assert isinstance(self._scheduler, OverlappedScheduler), "the round overlaps"
        self._version = event.version
        return self._note(self._scheduler.publish(event))

    def waiting_for(self) -> str:
        return self._scheduler.waiting_for()

    @property
    def progress(self) -> RoundProgress:
        """The progress of the round so far, with `lag` unset."""
        plan = self._plan
        complete = [
            name for name in self._undecided if self._num_valid[name] >= plan.accept_per_prompt
        ]
        return RoundProgress(
            step=plan.step,
            num_wanted=plan.accept_prompts,
            num_accepted=self._num_accepted,
            num_complete=len(complete),
            num_undecided=len(self._undecided),
            num_carried=len(self._undecided & self._earlier),
            num_running=len(self._running),
            num_unscored=len(self._unscored),
            version=self._version,
            is_evaluation=plan.is_evaluation,
        )

    def _note(self, decisions: list[Decision]) -> list[Decision]:
        for decision in decisions:
            match decision:
                case Launch(prompt_id=prompt_id, index=index):
                    self._undecided.add(prompt_id)
                    self._running.add((prompt_id, index))
                case Abort(prompt_id=prompt_id, indices=indices):
                    self._running -= {(prompt_id, index) for index in indices}
                case AcceptGroup(prompt_id=prompt_id):
                    self._num_accepted += 1
                    self._decide(prompt_id)
                case Defer() | Drop() | Filter() | Carry():
                    self._decide(decision.prompt_id)
        return decisions

    def _decide(self, prompt_id: str) -> None:
        """Expect nothing more of this prompt; its running responses are no longer this round's."""
        self._undecided.discard(prompt_id)
        for left in (self._running, self._unscored):
            left -= {name for name in left if name[0] == prompt_id}
