"""The state of scheduling between two steps: the prompts that wait, the numbers of all others, and
the change that a round makes to both.

drawn = trained + dropped + filtered + unfit + carried + in the long-prompt queue + skipped, after
every round
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Self

from tasks.scheduling.events import Carry, PromptRef, RoundPlan
from tasks.scheduling.staleness import Dispatched


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A prompt that a round left undecided, with its dispatch, for the next round to go on with."""

    ref: PromptRef
    dispatched: Dispatched


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The prompts that wait between two steps, and the numbers of those that were drawn, trained or
    given up."""

    queue: tuple[PromptRef, ...] = ()  # the long-prompt queue, first in first out
    # prompts of a reserve, passed over for one of another domain; the next to be launched
    skipped: tuple[PromptRef, ...] = ()
    carried: tuple[Carried, ...] = ()  # undecided prompts, in the order of the next round
    # how often waiting prompts were deferred, by id; only prompts deferred more than once
    deferrals: Mapping[str, int] = field(default_factory=dict)
    # tokens of the longest trained answer, by row; where the policy uses these lengths
    answer_tokens: Mapping[int, int] = field(default_factory=dict)
    num_drawn: int = 0  # prompts drawn from the dataset; also the position of the prompt stream
    num_trained: int = 0  # prompts trained
    # prompts given up: too few of their responses could be scored, or they came too late
    num_dropped: int = 0
    num_filtered: int = 0  # prompts not trained because the rewards of their group agreed
    num_unfit: int = 0  # prompts passed over: too long, or not to be rendered

    @property
    def waiting(self) -> tuple[PromptRef, ...]:
        """Prompts that were launched and are neither trained nor given up."""
        return (*(prompt.ref for prompt in self.carried), *self.queue)

    def times_deferred(self, ref: PromptRef) -> int:
        """Number of times that a prompt of the queue was deferred."""
        return self.deferrals.get(ref.prompt_id, 1)

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        return {
            "queue": [[ref.prompt_id, ref.domain] for ref in self.queue],
            "skipped": [[ref.prompt_id, ref.domain] for ref in self.skipped],
            "carried": [
                [prompt.ref.prompt_id, prompt.ref.domain, *astuple(prompt.dispatched)]
                for prompt in self.carried
            ],
            "deferrals": dict(self.deferrals),
            "answer_tokens": {str(row): tokens for row, tokens in self.answer_tokens.items()},
            "num_drawn": self.num_drawn,
            "num_trained": self.num_trained,
            "num_dropped": self.num_dropped,
            "num_filtered": self.num_filtered,
            "num_unfit": self.num_unfit,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:  # Any: JSON values
        """The inverse of to_json."""
        refs = {
            name: tuple(
                PromptRef(prompt_id=prompt_id, domain=domain)
                for prompt_id, domain in raw.get(name, ())
            )
            for name in ("queue", "skipped")
        }
        carried = tuple(
            Carried(
                ref=PromptRef(prompt_id=prompt_id, domain=domain),
                dispatched=Dispatched(
                    version=version, is_returned=is_returned, indices=tuple(indices)
                ),
            )
            for prompt_id, domain, version, is_returned, indices in raw.get("carried", ())
        )
        answers = {int(row): tokens for row, tokens in raw.get("answer_tokens", {}).items()}
        return cls(**(dict(raw) | refs | {"carried": carried, "answer_tokens": answers}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnd:
    """The end of a round: the id of every prompt that it launched is in exactly one of `accepted`,
    `deferred`, `dropped`, `filtered` and `carried`."""

    accepted: Sequence[str]  # prompts that are trained, in training order
    deferred: Sequence[str] = ()  # prompts for the long-prompt queue, in its order
    dropped: Sequence[str] = ()  # prompts given up: failures of infrastructure, or too late
    filtered: Sequence[str] = ()  # prompts that are not trained because their rewards agree
    carried: Sequence[Carry] = ()  # prompts for the next round, in its order
    # sampled tokens of the longest answer to each accepted prompt
    answer_tokens: Mapping[str, int] = field(default_factory=dict)


def finish_round(state: QueueState, plan: RoundPlan, end: RoundEnd) -> QueueState:
    """The state after a round. Raises ValueError unless `end` has every planned prompt once."""
    launched = _launched(plan, end)
    refs = {ref.prompt_id: ref for ref in plan.candidates}
    num_old = plan.num_carried + plan.num_queued
    queued = plan.candidates[plan.num_carried : num_old]
    assert set(queued) <= set(state.waiting), "what a round takes of the queue is in it"
    # prompts that have been in the long-prompt queue
    returned = {ref.prompt_id for ref in queued}
    returned |= {before.ref.prompt_id for before in state.carried if before.dispatched.is_returned}
    skipped, num_new = _advance(state, plan.candidates[num_old:], launched)
    is_placed = bool(num_new and plan.places)
    num_drawn = plan.places[num_new - 1] + 1 if is_placed else state.num_drawn + num_new
    deferred = [refs[prompt_id] for prompt_id in end.deferred]
    waiting = tuple(ref for ref in state.queue if ref.prompt_id not in launched)
    deferrals = {ref.prompt_id: state.times_deferred(ref) for ref in waiting}
    deferrals |= {ref.prompt_id: state.times_deferred(ref) + 1 for ref in queued if ref in deferred}
    answer_tokens = {
        ref.row: end.answer_tokens[ref.prompt_id]
        for ref in (plan.candidates if plan.expected_tokens else ())
        if ref.prompt_id in end.answer_tokens
    }
    still_carried = (prompt for prompt in state.carried if prompt.ref.prompt_id not in launched)
    carried = (
        Carried(
            ref=refs[carry.prompt_id],
            dispatched=Dispatched(
                version=carry.version,
                is_returned=carry.prompt_id in returned,
                indices=carry.indices,
            ),
        )
        for carry in end.carried
    )
    return replace(
        state,
        queue=(*waiting, *deferred),
        deferrals={prompt_id: count for prompt_id, count in deferrals.items() if count > 1},
        skipped=skipped,
        carried=(*still_carried, *carried),
        answer_tokens={**state.answer_tokens, **answer_tokens},
        num_drawn=num_drawn,
        num_trained=state.num_trained + len(end.accepted),
        num_dropped=state.num_dropped + len(end.dropped),
        num_filtered=state.num_filtered + len(end.filtered),
        num_unfit=state.num_unfit + num_drawn - state.num_drawn - num_new,
    )


def without_unfit(state: QueueState, unfit: Collection[int]) -> QueueState:
    """The state without the waiting prompts of these rows, which count as unfit from now on."""
    queue = tuple(ref for ref in state.queue if ref.row not in unfit)
    skipped = tuple(ref for ref in state.skipped if ref.row not in unfit)
    carried = tuple(prompt for prompt in state.carried if prompt.ref.row not in unfit)
    num_kept = len(queue) + len(skipped) + len(carried)
    num_lost = len(state.queue) + len(state.skipped) + len(state.carried) - num_kept
    num_unfit = state.num_unfit + num_lost
    return replace(state, queue=queue, skipped=skipped, carried=carried, num_unfit=num_unfit)


def _advance(
    state: QueueState, upcoming: Sequence[PromptRef], launched: Collection[str]
) -> tuple[tuple[PromptRef, ...], int]:
    """The skipped prompts after a round, and the number of new ones, up to the last launched."""
    assert state.skipped[: len(upcoming)] == upcoming[: len(state.skipped)], (
        "what was skipped comes next"
    )
    last = max(
        (place for place, ref in enumerate(upcoming, start=1) if ref.prompt_id in launched),
        default=0,
    )
    passed_over = tuple(ref for ref in upcoming[:last] if ref.prompt_id not in launched)
    return (*passed_over, *state.skipped[last:]), max(0, last - len(state.skipped))


def _launched(plan: RoundPlan, end: RoundEnd) -> Collection[str]:
    """The ids of the prompts that the round launched, each of the plan's among them."""
    carried = [carry.prompt_id for carry in end.carried]
    launched = [*end.accepted, *end.deferred, *end.dropped, *end.filtered, *carried]
    planned = {ref.prompt_id for ref in plan.prompts}
    possible = {ref.prompt_id for ref in plan.candidates}
    if len(set(launched)) != len(launched) or not planned <= set(launched) <= possible:
        raise ValueError(
            f"step {plan.step} must account for each of its {len(planned)} prompts once, got"
            f" {len(end.accepted)} accepted, {len(end.deferred)} deferred, {len(end.dropped)}"
            f" dropped, {len(end.filtered)} filtered and {len(carried)} carried; repeat the step"
        )
    return set(launched)
