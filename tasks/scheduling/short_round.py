"""The scheduler of a short round: of more prompts than it trains, the first to finish are kept.

    a prompt has R0 verdicts and its domain a free slot  ->  accept it, abort its siblings
    a domain has no free slot any more                   ->  abort the rest of the domain
    all P0 slots are taken                               ->  abort the rest, close;
                                                             defer its prompts in launch order,
                                                             or drop them (`late`)
    its rewards agree and the round has a reserve        ->  filter it, launch another
                                                             (`dynamic_sampling`)

Slots follow the launched mix of domains (`quotas`) and therefore can always be filled. Within a
prompt the first R0 verdicts count, which favours short answers when eta_R > 1. No rule can avoid
that and still gain time; `ledger` says which bias is left with eta_R = 1.

`ScoredLast` chooses before anything is scored, as systems with batch rewards do; a baseline:

    finished ──▶ the choosing scheduler, which takes the end of a response for its verdict
        ──▶ chosen groups
    it closes ──▶ chosen groups are scored (`RoundPlan.scores_last`) ──▶ accepted ──▶ close

A response without a verdict is replaced by another one, as in any round. A chosen group that runs
out of replacements is dropped, and no group takes its place: the others were given up when the
choice was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from artifacts.records import Outcome
from tasks.scheduling.dynamic_sampling import Reserve
from tasks.scheduling.events import (
    AcceptGroup,
    CloseRound,
    Decision,
    Defer,
    Drop,
    Event,
    Filter,
    Finished,
    RoundPlan,
    RoundScheduler,
    Scored,
)
from tasks.scheduling.groups import GroupProgress, describe_missing
from tasks.scheduling.quotas import RemainingQuotas


class ShortRoundScheduler:
    """Accepts exactly `accept_prompts` groups; fewer only when dropped prompts leave too few to
    choose from."""

    def __init__(self, plan: RoundPlan, late: Literal["deferred", "dropped"] = "deferred") -> None:
        """late: the fate of prompts that are undecided when all slots are taken."""
        assert plan.accept_prompts <= len(plan.prompts), "a round can accept only what it launched"
        self._plan = plan
        self._late = late
        self._reserve = Reserve(plan)
        self._undecided = {ref.prompt_id: GroupProgress(ref, plan) for ref in plan.prompts}
        self._slots = RemainingQuotas(plan.quotas, plan.accept_prompts)
        self._full: frozenset[str] = frozenset()  # domains whose undecided groups were closed
        self._is_closed = False

    def start(self) -> list[Decision]:
        groups = self._undecided.values()
        return [launch for group in groups for launch in group.begin()] + self._close_full_domains()

    def handle(self, event: Event) -> list[Decision]:
        group = self._undecided.get(event.prompt_id)
        if group is None or self._is_closed:
            return []
        decisions: list[Decision] = [*group.handle(event)]
        if group.is_hopeless:  # that may make room for any group
            decisions += self._drop(group)
            decisions += self._accept_complete([*self._undecided.values()])
        else:
            decisions += self._accept_complete([group])
        return decisions if self._slots.num_free else [*decisions, *self._close()]

    def waiting_for(self) -> str:
        return describe_missing(
            (group for group in self._undecided.values() if group.is_open), self._slots.num_free
        )

    def _accept_complete(self, groups: Sequence[GroupProgress]) -> list[Decision]:
        """Give what is complete of these a slot, as far as its domain has one."""
        decisions: list[Decision] = []
        for group in groups:
            if group.is_complete and self._slots.is_free(group.ref.domain):
                del self._undecided[group.ref.prompt_id]
                decisions += self._accept(group)
        return decisions + self._close_full_domains() if decisions else []

    def _accept(self, group: GroupProgress) -> list[Decision]:
        """Give the group a slot of its domain, or filter it and launch another of its domain."""
        further = self._reserve.replacement(group)
        if further is not None:
            self._undecided[further.ref.prompt_id] = further
            return [
                *group.close(),
                Filter(prompt_id=group.ref.prompt_id),
                *further.begin(),
            ]
        self._slots.take(group.ref.domain)
        return [
            AcceptGroup(prompt_id=group.ref.prompt_id, indices=group.accepted_indices()),
            *group.close(),
        ]

    def _close_full_domains(self) -> list[Decision]:
        """Want no more of a domain once it is full; the others are as they were."""
        full = self._slots.full
        if full == self._full:
            return []
        self._full = full
        groups = [group for group in self._undecided.values() if group.ref.domain in full]
        return [abort for group in groups if group.is_open for abort in group.close()]

    def _drop(self, group: GroupProgress) -> list[Decision]:
        """Give the prompt up; a slot that its domain cannot fill goes to another domain."""
        del self._undecided[group.ref.prompt_id]
        self._full = frozenset()  # what follows may make room in a full domain and take it again
        aborts = group.close()
        self._slots.give_up(
            Counter(
                group.ref.domain
                for group in self._undecided.values()
                if group.is_open or group.is_complete
            )
        )
        return [*aborts, Drop(prompt_id=group.ref.prompt_id)]

    def _close(self) -> list[Decision]:
        self._is_closed = True
        aborts = [abort for group in self._undecided.values() for abort in group.close()]
        return [
            *aborts,
            *(self._put_off(group) for group in self._undecided.values()),
            CloseRound(),
        ]

    def _put_off(self, group: GroupProgress) -> Decision:
        """Defer or drop a group that was too late; filter it if it is complete and would be."""
        prompt_id = group.ref.prompt_id
        if self._reserve.filters(group):
            return Filter(prompt_id=prompt_id)
        if self._late == "dropped":
            return Drop(prompt_id=prompt_id, is_late=True)
        return Defer(prompt_id=prompt_id)


class ScoredLast:
    """Lets another scheduler choose groups by the end of generation, then waits for the verdicts on
    the chosen groups."""

    def __init__(self, choosing: RoundScheduler, plan: RoundPlan) -> None:
        assert not plan.reserve, "groups whose rewards agree are known too late to be filtered"
        self._choosing = choosing
        self._plan = plan
        self._refs = {ref.prompt_id: ref for ref in plan.prompts}
        self._is_chosen = False  # whether all groups to train are chosen
        self._chosen: dict[str, GroupProgress] = {}  # chosen groups that lack a verdict
        self._early: list[Scored] = []  # verdicts that an earlier attempt had

    def start(self) -> list[Decision]:
        return self._chose(self._choosing.start())

    def handle(self, event: Event) -> list[Decision]:
        if self._is_chosen:
            return self._settle(event)
        if isinstance(event, Scored):
            self._early.append(event)
            return []
        if isinstance(event, Finished):
            name, index = event.prompt_id, event.index
            event = Scored(prompt_id=name, index=index, outcome=Outcome.OK, reward=0.0)
        return self._chose(self._choosing.handle(event))

    def waiting_for(self) -> str:
        if not self._is_chosen:
            return self._choosing.waiting_for()
        return describe_missing(self._chosen.values(), len(self._chosen))

    def _chose(self, decisions: Sequence[Decision]) -> list[Decision]:
        """What the other one decided, but for what has to wait for verdicts."""
        kept: list[Decision] = []
        for decision in decisions:
            match decision:
                case AcceptGroup(prompt_id=prompt_id, indices=indices):
                    self._chosen[prompt_id] = self._generated(prompt_id, indices)
                case CloseRound():
                    self._is_chosen = True
                case _:
                    kept.append(decision)
        if not self._is_chosen:
            return kept
        if not self._chosen:
            return [*kept, CloseRound()]
        return [*kept, *(after for verdict in self._early for after in self._settle(verdict))]

    def _generated(self, prompt_id: str, indices: Sequence[int]) -> GroupProgress:
        """A group of which these responses are there and wait for their verdicts."""
        group = GroupProgress(self._refs[prompt_id], self._plan)
        group.go_on(indices, num_used=self._plan.launch_per_prompt)
        for index in indices:
            group.handle(Finished(prompt_id=prompt_id, index=index, num_tokens=0))
        return group

    def _settle(self, event: Event) -> list[Decision]:
        """Accept or drop a chosen group as soon as its verdicts say so."""
        group = self._chosen.get(event.prompt_id)
        if group is None:
            return []
        decisions: list[Decision] = [*group.handle(event)]
        if not (group.is_complete or group.is_hopeless):
            return decisions
        del self._chosen[event.prompt_id]
        decisions.append(
            AcceptGroup(prompt_id=event.prompt_id, indices=group.accepted_indices())
            if group.is_complete
            else Drop(prompt_id=event.prompt_id)
        )
        decisions += group.close()
        return decisions if self._chosen else [*decisions, CloseRound()]
