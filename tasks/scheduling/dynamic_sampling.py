"""Dynamic sampling (DAPO, section 3.2): a group whose rewards all agree teaches nothing, so another
prompt takes its place.

    a complete group, all of its verdicts equal, and its domain has a prompt left in the reserve
        -> Filter(it); the domain's first stand-in joins the round, or else its next prompt is asked
    nothing left in the reserve -> the group is trained as it is
    a round that waits for all: a further prompt will probably be needed, and there is room for it
        -> it is asked early and stands by
    a stand-in cannot be needed any more -> it is aborted, and comes first in the next round

The mix of domains stays as drawn, and the reserve bounds how long a round can go on; without one
nothing is filtered. There is room for an early prompt as long as no more requests are active than
the round began with (RollPacker, section 7).

A stand-in joins in the order of the reserve and only in place of a filtered group, however soon its
own answers came. So a round filters as many groups, and trains the same groups with differing
rewards, as if it had asked no prompt early. Short rounds ask none early: a prompt that started
sooner would be ahead in the race for a slot.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from tasks.scheduling.events import Decision, Event, RoundPlan
from tasks.scheduling.groups import GroupProgress

# a prompt is asked early if it is needed with more than this probability: where every token costs
# its own time, a prompt asked in vain costs as much as one that is needed may gain
ASK_ABOVE = 0.9
TELLING_VERDICTS = 2  # fewer verdicts say nothing about whether a group's rewards agree


class Reserve:
    """The further prompts that a round may launch in place of filtered groups, some of them early
    as stand-ins."""

    def __init__(self, plan: RoundPlan) -> None:
        self._plan = plan
        self._left = list(plan.reserve)
        self._standing_by: list[GroupProgress] = []  # asked early, in the order of the reserve

    def replacement(self, group: GroupProgress) -> GroupProgress | None:
        """The group that takes the place of this complete one, launched early or not yet; None if
        the complete group is to be trained."""
        if not self.filters(group):
            return None
        for stand_in in self._standing_by:
            if stand_in.ref.domain == group.ref.domain:
                self._standing_by.remove(stand_in)
                return stand_in
        return self._next(group.ref.domain)

    def filters(self, group: GroupProgress) -> bool:
        """True if the round filters this group: its rewards agree, and the plan has a reserve."""
        return bool(self._plan.reserve) and group.is_flat

    def handle(self, event: Event) -> list[Decision]:
        """Pass an event of a stand-in to it, and abort its surplus responses once it is complete;
        events of other groups change nothing."""
        for stand_in in self._standing_by:
            if stand_in.ref.prompt_id == event.prompt_id:
                launches = stand_in.handle(event)
                return [*launches, *stand_in.close()] if stand_in.is_complete else [*launches]
        return []

    def foresee(self, undecided: Collection[GroupProgress]) -> list[Decision]:
        """Launch early the stand-ins that these undecided groups will probably need, and abort the
        stand-ins that no undecided group can need any more."""
        if not self._plan.reserve or self._plan.scores_last:
            return []
        return [*self._give_up(undecided), *self._ask_early(undecided)]

    def _give_up(self, undecided: Collection[GroupProgress]) -> list[Decision]:
        decisions: list[Decision] = []
        for domain in dict.fromkeys(group.ref.domain for group in self._standing_by):
            stand_ins = _of(domain, self._standing_by)
            may_be_flat = [group.may_be_flat for group in (*_of(domain, undecided), *stand_ins)]
            num_before = len(may_be_flat) - len(stand_ins)
            for place, stand_in in enumerate(stand_ins):
                if sum(may_be_flat[: num_before + place]) <= place:
                    self._standing_by.remove(stand_in)
                    decisions += stand_in.close()
        return decisions

    def _ask_early(self, undecided: Collection[GroupProgress]) -> list[Decision]:
        decisions: list[Decision] = []
        for domain in dict.fromkeys(group.ref.domain for group in undecided):
            while self._has_room(undecided) and self._is_needed(domain, undecided):
                stand_in = self._next(domain)
                if stand_in is None:
                    break
                self._standing_by.append(stand_in)
                decisions += stand_in.begin()
        return decisions

    def _has_room(self, undecided: Collection[GroupProgress]) -> bool:
        """True if a further prompt leaves no more requests active than the round began with."""
        running = sum(group.num_running for group in (*undecided, *self._standing_by))
        most = len(self._plan.prompts) * self._plan.launch_per_prompt
        return running + self._plan.launch_per_prompt <= most

    def _is_needed(self, domain: str, undecided: Collection[GroupProgress]) -> bool:
        """True if the domain will probably need one more stand-in than it has."""
        stand_ins = _of(domain, self._standing_by)
        groups = (*_of(domain, undecided), *stand_ins)
        return _chance_of(len(stand_ins) + 1, map(self._chance_to_agree, groups)) > ASK_ABOVE

    def _chance_to_agree(self, group: GroupProgress) -> float:
        """Probability that a group's rewards will all be the same, from those that are in.

        How often a prompt is answered rightly is taken to follow Jeffreys' prior, which favours
        both ends: after n equal rewards the next one is equal with probability (n + 1/2)/(n + 1).
        """
        if not group.may_be_flat or group.num_valid < TELLING_VERDICTS:
            return 0.0
        needed = self._plan.accept_per_prompt
        return math.prod((seen + 0.5) / (seen + 1) for seen in range(group.num_valid, needed))

    def _next(self, domain: str) -> GroupProgress | None:
        ref = next((ref for ref in self._left if ref.domain == domain), None)
        if ref is None:
            return None
        self._left.remove(ref)
        return GroupProgress(ref, self._plan)


def _of(domain: str, groups: Iterable[GroupProgress]) -> list[GroupProgress]:
    return [group for group in groups if group.ref.domain == domain]


def _chance_of(least: int, chances: Iterable[float]) -> float:
    """Probability that at least so many of these independent events happen."""
    counts = [1.0] + [0.0] * least  # probability of 0, 1, ... events; the last one: or more
    for chance in chances:
        for count in reversed(range(least)):
            counts[count + 1] += counts[count] * chance
            counts[count] *= 1 - chance
    return counts[least]
