"""What came back during a round, and what was decided about it; becomes the round's result.

Leaves out how it came back (`driver`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts.records import Generated, Group, Prompt, Response, Score, response_id
from tasks.scheduling.events import AcceptGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round brought home. Every generated response is here once, the ones read back from an earlier attempt included."""

    groups: tuple[Group, ...]  # accepted, in the order of acceptance
    deferred: tuple[str, ...]  # prompt ids for the long-prompt queue, in launch order
    dropped: tuple[str, ...]  # prompt ids given up
    generated: tuple[Generated, ...]  # finished and aborted, in the order they came back
    scores: tuple[Score, ...]  # every verdict that came before the round closed
    num_relaunched: int  # responses that were lost with a replica and launched again
    lost_engines: tuple[str, ...]  # replicas lost during the round, revived ones included


class RoundRecord:
    """Collects a round's result. `recorded` are responses of an interrupted attempt; those of other prompts are left out."""

    def __init__(self, prompts: Mapping[str, Prompt], recorded: Sequence[Response]) -> None:
        self._prompts = prompts
        own = [one for one in recorded if one.generated.finish_reason != "aborted" and one.generated.prompt_id in prompts]
        self._replayable = {one.generated.response_id: one for one in own}
        self._generated = {one.generated.response_id: one.generated for one in own}
        self._scores = {one.generated.response_id: one.score for one in own if one.score is not None}
        self.groups: list[Group] = []
        self.deferred: list[str] = []
        self.dropped: list[str] = []
        self.num_relaunched = 0

    def replay(self, name: str) -> Response | None:
        """The recorded response that answers this launch, once; None if it must be generated."""
        return self._replayable.pop(name, None)

    def add_generated(self, generated: Sequence[Generated]) -> None:
        """A later response replaces one of the same id: only an abort that nobody asked for leaves two."""
        self._generated |= {one.response_id: one for one in generated}

    def add_scores(self, scores: Sequence[Score]) -> None:
        self._scores |= {response_id(score.prompt_id, score.index): score for score in scores}

    def add_group(self, decision: AcceptGroup) -> Group:
        """The group that a scheduler accepted, with its responses and their scores."""
        names = [response_id(decision.prompt_id, index) for index in decision.indices]
        responses = tuple(Response(generated=self._generated[name], score=self._scores[name]) for name in names)
        group = Group(prompt=self._prompts[decision.prompt_id], responses=responses)
        self.groups.append(group)
        return group

    def result(self, lost_engines: Sequence[str]) -> RoundResult:
        return RoundResult(
            groups=tuple(self.groups),
            deferred=tuple(self.deferred),
            dropped=tuple(self.dropped),
            generated=tuple(self._generated.values()),
            scores=tuple(self._scores.values()),
            num_relaunched=self.num_relaunched,
            lost_engines=tuple(lost_engines),
        )
