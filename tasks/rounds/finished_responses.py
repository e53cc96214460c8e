"""The finished responses of a round, with their verdicts and the fates of their prompts. Pure.

    recorded by an earlier attempt ─┐
    finished on an engine ──────────┴▶ held ─▶ unscored (the feed has it) ─▶ scored ─▶ in a group

The driver's memory. Leaves out the responses that are still to be generated (`response_tracker`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from artifacts.records import Generated, Group, Response, Score, response_id
from tasks.rounds.records import RoundInputs, RoundResult
from tasks.scheduling.events import AcceptGroup, Carry, Decision, Defer, Drop, Filter


class FinishedResponses:
    """The finished responses of one round.

    A recorded response stands in for its launch if it is whole, its weights are allowed, and the
    round may launch its prompt. If it was stopped instead, it goes on (`response_tracker`). All
    other recorded responses count as stale.
    """

    def __init__(self, inputs: RoundInputs) -> None:
        self._prompts = inputs.prompts
        self._mixes_versions = inputs.plan.mixes_versions
        self._recorded: dict[str, Response] = {}
        self._generated: dict[str, Generated] = {}
        self._scores: dict[str, Score] = {}
        self._unscored: set[str] = set()
        self._held: list[Generated] = []
        self._stale_tokens = 0
        self._groups: list[Group] = []
        self._deferred: list[str] = []
        self._dropped: list[str] = []
        self._filtered: list[str] = []
        self._late: list[str] = []
        self._carried: list[Carry] = []
        for response in inputs.recorded:
            generated = response.generated
            if not inputs.goes_on_with(generated):
                self.refuse(generated.num_sampled + generated.num_forgotten)
            elif generated.finish_reason != "aborted":
                self._recorded[generated.response_id] = response

    @property
    def num_groups(self) -> int:
        """Number of accepted groups."""
        return len(self._groups)

    @property
    def num_unscored(self) -> int:
        """Number of responses that the feed has yet to score."""
        return len(self._unscored)

    @property
    def has_held(self) -> bool:
        """True if responses wait to be handed to the feed."""
        return bool(self._held)

    def take_recorded(self, name: str) -> Response | None:
        """Remove and return the recorded response that stands in for a launch, by response id; None
        if there is none."""
        return self._recorded.pop(name, None)

    def finish(self, generated: Generated) -> None:
        """Keep a response, whole or with the tokens that it had when the round gave it up."""
        self._generated[generated.response_id] = generated

    def refuse(self, num_tokens: int) -> None:
        """Count this many sampled tokens, which cannot be trained, as stale."""
        self._stale_tokens += num_tokens

    def hold(self, generated: Iterable[Generated]) -> None:
        """Hold whole responses until they are handed over for scoring."""
        self._held += generated

    def hand_over(self) -> list[Generated]:
        """Remove and return the held responses, which the caller hands to the feed."""
        held, self._held = self._held, []
        self._unscored |= {generated.response_id for generated in held}
        return held

    def score(self, score: Score) -> None:
        """Keep a verdict; its response no longer counts as unscored."""
        name = response_id(score.prompt_id, score.index)
        self._unscored.discard(name)
        self._scores[name] = score

    def accept(self, decision: AcceptGroup) -> Group:
        """Keep and return the group of an accepted prompt, as it is trained."""
        names = [response_id(decision.prompt_id, index) for index in decision.indices]
        known, scores = self._generated, self._scores
        responses = tuple(Response(generated=known[name], score=scores[name]) for name in names)
        group = Group(prompt=self._prompts[decision.prompt_id], responses=responses)
        self._groups.append(group)
        return group

    def note(self, decision: Decision) -> None:
        """Record the fate of a prompt that is not trained; other decisions change nothing."""
        match decision:
            case Defer(prompt_id=late, is_late=True) | Drop(prompt_id=late, is_late=True):
                self._late.append(late)
        match decision:
            case Defer(prompt_id=prompt_id):
                self._deferred.append(prompt_id)
                self._forget_held(prompt_id)
            case Drop(prompt_id=prompt_id):
                self._dropped.append(prompt_id)
                self._forget_held(prompt_id)
            case Filter(prompt_id=prompt_id):
                self._filtered.append(prompt_id)
            case Carry():
                self._carried.append(decision)

    def _forget_held(self, prompt_id: str) -> None:
        """Skip the verdicts on a prompt that is not trained."""
        self._held = [generated for generated in self._held if generated.prompt_id != prompt_id]

    def describe(self) -> str:
        """Describe the responses and verdicts so far, for the deadline's error message."""
        tokens = sum(generated.num_sampled for generated in self._generated.values())
        come = f"{len(self._generated)} responses with {tokens} tokens have come"
        return f"{come}, {len(self._unscored)} of them wait for a verdict"

    def result(self, kept: Iterable[Generated], migrated: Iterable[Generated]) -> RoundResult:
        """The result of the round. kept: partial responses that did not go on; migrated: partial
        responses that went on in another engine."""
        unasked = self._recorded
        home = self._generated | {generated.response_id: generated for generated in kept}
        home |= {name: response.generated for name, response in unasked.items()}
        carried = {decision.prompt_id: decision for decision in self._carried}
        later = {
            name: generated
            for name, generated in home.items()
            if generated.prompt_id in carried and self._is_of_use(generated, carried)
        }
        scores = self._scores
        scored = {name: response.score for name, response in unasked.items()} | scores
        return RoundResult(
            groups=tuple(self._groups),
            accepted=tuple(group.prompt.prompt_id for group in self._groups),
            answer_tokens={
                group.prompt.prompt_id: max(each.generated.num_sampled for each in group.responses)
                for group in self._groups
            },
            deferred=tuple(self._deferred),
            dropped=tuple(self._dropped),
            filtered=tuple(self._filtered),
            late=tuple(self._late),
            generated=tuple(each for name, each in home.items() if name not in later),
            migrated=tuple(migrated),
            scores=tuple(score for name, score in scores.items() if name not in later),
            stale_tokens=self._stale_tokens,
            carried=tuple(self._carried),
            carried_responses=tuple(
                Response(generated=generated, score=scored.get(name))
                for name, generated in later.items()
            ),
        )

    def _is_of_use(self, generated: Generated, carried: Mapping[str, Carry]) -> bool:
        """True if the next round can use a response of a carried prompt: it is whole, or newer
        weights may go on from its tokens and its prompt is not complete without it. Whole ones stay
        until their prompt is decided: a later round may launch them, and counts them once."""
        if generated.finish_reason != "aborted":
            return True
        has_begun = bool(generated.token_ids) or generated.episode is not None
        return has_begun and self._mixes_versions and not carried[generated.prompt_id].indices
