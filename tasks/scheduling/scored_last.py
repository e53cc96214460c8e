"""A round that chooses what it trains before anything is scored: groups whose responses are all
generated first are kept, and their verdicts are asked for when nothing generates any more.

    finished ──▶ the scheduler that chooses: to it a last token is a verdict ──▶ chosen groups
    it closes ──▶ what is chosen is scored (`RoundPlan.scores_last`) ──▶ accepted ──▶ close

As batch rewards have it; to compare with. A response without a verdict is generated anew, as in any
round; a chosen group that runs out of those is dropped, and nothing takes its place: what could was
given up when the choice was made. Leaves out dynamic sampling, which needs verdicts to choose by.
"""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.records import Outcome
from tasks.scheduling.events import (
    AcceptGroup,
    CloseRound,
    Decision,
    Drop,
    Event,
    Finished,
    RoundPlan,
    RoundScheduler,
    Scored,
)
from tasks.scheduling.groups import GroupProgress, describe_missing


class ScoredLast:
    """Lets another scheduler choose by last tokens, and waits for the verdicts of what it chose."""

    def __init__(self, choosing: RoundScheduler, plan: RoundPlan) -> None:
        assert not plan.reserve, "groups whose rewards agree are known too late to be filtered"
        self._choosing = choosing
        self._plan = plan
        self._refs = {ref.prompt_id: ref for ref in plan.prompts}
        self._is_chosen = False  # whether all that is trained is
        self._chosen: dict[str, GroupProgress] = {}  # without all of their verdicts
        self._early: list[Scored] = []  # verdicts that an earlier attempt had

    def start(self) -> list[Decision]:
        return self._chose(self._choosing.start())

    def handle(self, event: Event) -> list[Decision]:
        if self._is_chosen:
            return self._settle(event)
        if isinstance(event, Scored):
            self._early.append(event)
            return []
        heard = _as_scored(event) if isinstance(event, Finished) else event
        return self._chose(self._choosing.handle(heard))

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


def _as_scored(event: Finished) -> Scored:
    return Scored(prompt_id=event.prompt_id, index=event.index, outcome=Outcome.OK, reward=0.0)
