"""Dynamic sampling (DAPO, section 3.2): a group whose rewards all agree teaches nothing, so another
prompt is asked in its place.

    a complete group, all of its verdicts equal, and its domain has a prompt left in the reserve
        -> Filter(it), launch the next prompt of its domain; it takes no slot and never enters the
        long-prompt queue
    nothing left in the reserve -> the group is trained as it is

One prompt comes for one that went, of the same domain: as many requests are active as before
(RollPacker, section 7), the mix of domains stays what was drawn, and the reserve bounds how long a
round can go on. Without a reserve nothing is filtered.
"""

from __future__ import annotations

from tasks.scheduling.events import RoundPlan
from tasks.scheduling.groups import GroupProgress


class Reserve:
    """What is left of the further prompts that a round may ask."""

    def __init__(self, plan: RoundPlan) -> None:
        self._plan = plan
        self._left = list(plan.reserve)

    def replacement(self, group: GroupProgress) -> GroupProgress | None:
        """What comes instead of this complete group, not launched yet; None if it is to be
        trained."""
        if not self.filters(group):
            return None
        ref = next((ref for ref in self._left if ref.domain == group.ref.domain), None)
        if ref is None:
            return None
        self._left.remove(ref)
        return GroupProgress(ref, self._plan)

    def filters(self, group: GroupProgress) -> bool:
        """Whether the round has no use for this group."""
        return bool(self._plan.reserve) and group.is_flat
