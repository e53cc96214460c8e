"""The scheduler without speculation: it waits for every launched response.

Used for evaluations, and for every round in which a policy chooses nothing; these rounds differ
only in the prompts that they ask.
"""

from __future__ import annotations

from tasks.scheduling.dynamic_sampling import Reserve
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    CloseRound,
    Decision,
    Drop,
    Event,
    Filter,
    RoundPlan,
)
from tasks.scheduling.groups import GroupProgress, describe_missing


class WaitForAll:
    """Launches every response at once, accepts each group as it completes, closes after the last.

    A prompt is dropped if too many of its responses get no verdict. With a reserve, groups whose
    rewards agree are filtered, and the next prompt of their domain takes their place
    (`dynamic_sampling`).
    """

    def __init__(self, plan: RoundPlan) -> None:
        assert plan.accept_prompts == len(plan.prompts), (
            "without speculation every launched prompt is accepted"
        )
        self._reserve = Reserve(plan)
        self._groups = {ref.prompt_id: GroupProgress(ref, plan) for ref in plan.prompts}
        self._open = dict(self._groups)  # groups that are still wanted

    def start(self) -> list[Decision]:
        if not self._groups:
            return [CloseRound()]
        return [launch for group in self._groups.values() for launch in group.begin()]

    def handle(self, event: Event) -> list[Decision]:
        group = self._groups.get(event.prompt_id)
        if group is None:
            return [*self._reserve.handle(event), *self._foresee()]
        if not group.is_open:
            return []
        decisions: list[Decision] = [*group.handle(event), *self._settle(group)]
        decisions += self._foresee()
        return decisions if self._open else [*decisions, CloseRound()]

    def _settle(self, group: GroupProgress) -> list[Decision]:
        """Drop or accept the group, or put another in its place, which may be ready itself."""
        if group.is_hopeless:
            return [*self._close(group), Drop(prompt_id=group.ref.prompt_id)]
        if not group.is_complete:
            return []
        further = self._reserve.replacement(group)
        if further is None:
            return [
                AcceptGroup(prompt_id=group.ref.prompt_id, indices=group.accepted_indices()),
                *self._close(group),
            ]
        self._groups[further.ref.prompt_id] = self._open[further.ref.prompt_id] = further
        return [
            *self._close(group),
            Filter(prompt_id=group.ref.prompt_id),
            *further.begin(),
            *self._settle(further),
        ]

    def waiting_for(self) -> str:
        return describe_missing(self._open.values(), len(self._open))

    def _close(self, group: GroupProgress) -> list[Abort]:
        del self._open[group.ref.prompt_id]
        return group.close()

    def _foresee(self) -> list[Decision]:
        return self._reserve.foresee(self._open.values())
