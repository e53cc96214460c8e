"""The scheduler of an asynchronous round, which overlaps the training of earlier steps, or
(`pauses`) goes on with responses that the round before stopped.

    start ── what the round before left undecided, then new prompts ─▶ launched
    Published(version) ─▶ more prompts may be dispatched (`Admission`)
    a group has R0 verdicts ─▶ its siblings are aborted; filtered, or accepted, or held while its
                               slot is another's
    all slots taken ─▶ carry what is undecided into the next round, close

A slot is another's if a group with a nearer deadline will need it. Of the groups that are held, the
one with the nearest deadline is accepted first. Within a prompt, eta_R works as in `short_round`; a
prompt that was parked before launches only R0 responses, as in a long round. While earlier steps
still train, the round waits for every group at its deadline: closing sooner would give the group up
and gain nothing. After that, `at_deadline` decides:

    wait          the round waits for the group: no token lags more than the bound, none is lost
    drop          the group is given up as soon as the slots are filled without it, which favours
                  short answers; a baseline
    park          the group is put into the long-prompt queue, which comes first once it fills a
                  step; the second time the round waits for the group
    train_anyway  the group is trained whenever it is complete, without a bound on lag; a baseline
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal

from tasks.scheduling.dynamic_sampling import Reserve
from tasks.scheduling.events import (
    AcceptGroup,
    Carry,
    CloseRound,
    Decision,
    Defer,
    Drop,
    Event,
    Filter,
    Published,
    RoundPlan,
)
from tasks.scheduling.groups import GroupProgress, describe_missing
from tasks.scheduling.staleness import Dispatched, can_all_be_trained

AtDeadline = Literal["wait", "drop", "park", "train_anyway"]


@dataclass(frozen=True, slots=True)
class _Undecided:
    """A dispatched group that has not been accepted or given up."""

    group: GroupProgress
    version: int  # the newest that every engine had when the group was dispatched
    deadline: int  # the last step that may train it
    is_due: bool  # whether the group must be trained by its deadline: a slot is kept for it


class AsynchronousScheduler:
    """Schedules an asynchronous round, which accepts `accept_prompts` groups; fewer only when
    dropped prompts leave too few to choose from."""

    def __init__(self, plan: RoundPlan, at_deadline: AtDeadline) -> None:
        assert plan.admission is not None, "an asynchronous round is planned with an admission"
        self._plan = plan
        self._admission = plan.admission
        self._at_deadline = at_deadline
        self._gives_up = at_deadline in ("drop", "park")
        self._reserve = Reserve(plan)
        self._upcoming = deque((*plan.prompts[plan.num_carried :], *plan.upcoming))
        queued = plan.candidates[plan.num_carried :][: plan.num_queued]
        self._queued = {ref.prompt_id for ref in queued}
        self._version = plan.admission.version
        self._num_dispatched = plan.admission.num_before
        self._num_free = plan.accept_prompts
        self._undecided: dict[str, _Undecided] = {}  # in the order of dispatch
        # number of undecided groups by deadline and `is_due`: counting them for every event would
        # take time that grows with the square of the groups
        self._counts: Counter[tuple[int, bool]] = Counter()
        self._complete: dict[str, None] = {}  # undecided groups, in the order of completion
        self._is_closed = False

    def start(self) -> list[Decision]:
        decisions: list[Decision] = []
        carried = self._plan.prompts[: self._plan.num_carried]
        for ref, before in zip(carried, self._admission.carried, strict=True):
            decisions += self._dispatch(GroupProgress(ref, self._plan), before)
        return [*decisions, *self._admit(), *self._settle()]

    def handle(self, event: Event) -> list[Decision]:
        undecided = self._undecided.get(event.prompt_id)
        if undecided is None or self._is_closed:
            return []
        group = undecided.group
        decisions: list[Decision] = [*group.handle(event)]
        if group.is_hopeless:
            return [*decisions, *self._give_up(group), *self._admit(), *self._settle()]
        if group.is_complete and event.prompt_id not in self._complete:
            return [*decisions, *self._hold_or_filter(group), *self._settle()]
        return decisions

    def publish(self, event: Published) -> list[Decision]:
        """Dispatch groups for each version up to the published one, version by version, so that a
        round that is played again dispatches the same groups."""
        decisions: list[Decision] = []
        while self._version < event.version and not self._is_closed:
            self._version += 1
            decisions += [*self._admit(), *self._settle()]
        return decisions

    def waiting_for(self) -> str:
        groups = [undecided.group for undecided in self._undecided.values()]
        missing = describe_missing(groups, self._num_free)
        admitted = f"{self._num_dispatched} groups are dispatched at version {self._version}"
        return f"{missing}; {admitted}, {len(self._upcoming)} more await newer weights"

    def _admit(self) -> list[Decision]:
        """Dispatch as many new groups as the version allows."""
        decisions: list[Decision] = []
        while self._upcoming and self._num_dispatched < self._admission.limit(self._version):
            ref = self._upcoming.popleft()
            self._num_dispatched += 1
            now = Dispatched(version=self._version, is_returned=ref.prompt_id in self._queued)
            decisions += self._dispatch(GroupProgress(ref, self._plan), now)
        return decisions

    def _dispatch(self, group: GroupProgress, dispatched: Dispatched) -> list[Decision]:
        """Launch a group's responses. None of them may be generated by weights older than those at
        dispatch: at the group's deadline its tokens would lag more than L versions."""
        group.oldest_version = dispatched.version
        waits_for = self._at_deadline == "park" and dispatched.is_returned
        undecided = _Undecided(
            group=group,
            version=dispatched.version,
            deadline=self._admission.deadline(dispatched.version),
            is_due=self._at_deadline == "wait" or waits_for,
        )
        self._undecided[group.ref.prompt_id] = undecided
        self._counts[undecided.deadline, undecided.is_due] += 1
        if dispatched.indices:
            return [*group.go_on(dispatched.indices)]
        plan = self._plan
        num = plan.accept_per_prompt if dispatched.is_returned else plan.launch_per_prompt
        return [*group.launch(num)]

    def _hold_or_filter(self, group: GroupProgress) -> list[Decision]:
        """A complete group waits for a slot, unless another is dispatched in its place."""
        further = self._reserve.replacement(group)
        if further is None:
            self._complete[group.ref.prompt_id] = None
            return []
        self._decide(group.ref.prompt_id)
        return [
            *group.close(),
            Filter(prompt_id=group.ref.prompt_id),
            *self._dispatch(further, Dispatched(version=self._version)),
        ]

    def _give_up(self, group: GroupProgress) -> list[Decision]:
        self._decide(group.ref.prompt_id)
        self._num_dispatched -= 1
        return [*group.close(), Drop(prompt_id=group.ref.prompt_id)]

    def _settle(self) -> list[Decision]:
        """Accept the groups that have a slot, and close the round when no more can come."""
        if self._is_closed:
            return []
        decisions: list[Decision] = []
        while (name := self._next_to_accept()) is not None:
            group = self._decide(name).group
            del self._complete[name]
            self._num_free -= 1
            accepted = AcceptGroup(prompt_id=name, indices=group.accepted_indices())
            decisions += [accepted, *group.close()]
        for name in self._complete:
            decisions += self._undecided[name].group.close()
        can_come = bool(self._undecided or self._upcoming)
        return decisions if self._num_free and can_come else [*decisions, *self._close()]

    def _next_to_accept(self) -> str | None:
        """The earliest-deadline complete group whose acceptance still leaves a slot for every group
        that is due."""
        if not (self._num_free and self._complete):
            return None
        num_due: Counter[int] = Counter()
        for (deadline, is_due), count in self._counts.items():
            num_due[deadline] += count if is_due or self._may_be_in_time() else 0
        by_deadline = sorted(self._complete, key=lambda name: self._undecided[name].deadline)
        return next((name for name in by_deadline if self._may_accept(name, num_due)), None)

    def _may_be_in_time(self) -> bool:
        """True if slots are kept for groups that would be given up, too: while earlier steps
        train."""
        return self._gives_up and self._version < self._plan.step - 1

    def _may_accept(self, name: str, num_due: Counter[int]) -> bool:
        candidate = self._undecided[name]
        is_counted = candidate.is_due or self._may_be_in_time()
        others = num_due - Counter([candidate.deadline] if is_counted else [])
        step, num_groups = self._plan.step, self._admission.prompts_per_step
        return can_all_be_trained(others, step, self._num_free - 1, num_groups)

    def _decide(self, name: str) -> _Undecided:
        """Remove a group that is accepted or given up."""
        decided = self._undecided.pop(name)
        self._counts[decided.deadline, decided.is_due] -= 1
        return decided

    def _close(self) -> list[Decision]:
        """Close the round: give late groups up and carry the others, complete ones first."""
        self._is_closed = True
        names = [*self._complete, *(name for name in self._undecided if name not in self._complete)]
        decisions = [decision for name in names for decision in self._leave(self._undecided[name])]
        return [*decisions, CloseRound()]

    def _leave(self, undecided: _Undecided) -> list[Decision]:
        name, is_late = undecided.group.ref.prompt_id, undecided.deadline <= self._plan.step
        if is_late and self._at_deadline == "drop":
            return [*undecided.group.close(), Drop(prompt_id=name, is_late=True)]
        if is_late and self._at_deadline == "park":
            return [*undecided.group.close(), Defer(prompt_id=name, is_late=True)]
        assert not (is_late and undecided.is_due), "what is due is trained before the round closes"
        indices = undecided.group.accepted_indices() if name in self._complete else ()
        return [Carry(prompt_id=name, version=undecided.version, indices=indices)]
