"""What the scheduling remembers from step to step, and how a round changes it.

drawn = trained + dropped + filtered + unfit + carried + in the long-prompt queue + skipped, after
every round
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Self

from tasks.scheduling.admission import Dispatched
from tasks.scheduling.events import Carry, PromptRef, RoundPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A prompt that an asynchronous round left undecided; the next one goes on with it."""

    ref: PromptRef
    dispatched: Dispatched


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """Where the drawn prompts are."""

    queue: tuple[PromptRef, ...] = ()  # the long-prompt queue, first in first out
    skipped: tuple[
        PromptRef, ...
    ] = ()  # passed over in a reserve for one of another domain; the next to be asked
    carried: tuple[Carried, ...] = ()  # undecided, in the order of the next round
    num_drawn: int = 0  # prompts drawn from the dataset; also the position of the prompt stream
    num_trained: int = 0  # prompts trained
    num_dropped: int = 0  # prompts given up because too few of their responses could be scored
    num_filtered: int = 0  # prompts not trained because the rewards of their group agreed
    num_unfit: int = 0  # prompts passed over: too long, or not to be rendered

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        return {
            "queue": [[ref.prompt_id, ref.domain] for ref in self.queue],
            "skipped": [[ref.prompt_id, ref.domain] for ref in self.skipped],
            "carried": [
                [prompt.ref.prompt_id, prompt.ref.domain, *astuple(prompt.dispatched)]
                for prompt in self.carried
            ],
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
        return cls(**(dict(raw) | refs | {"carried": carried}))


def finish_round(
    state: QueueState,
    plan: RoundPlan,
    *,
    accepted: Collection[str],
    deferred: Sequence[str],
    dropped: Collection[str],
    filtered: Collection[str] = (),
    carried: Sequence[Carry] = (),
) -> QueueState:
    """The state after a round; every prompt that it asked must be in exactly one of the five
    (prompt ids)."""
    refs = {ref.prompt_id: ref for ref in plan.candidates}
    asked = [*accepted, *deferred, *dropped, *filtered, *(prompt.prompt_id for prompt in carried)]
    planned = {ref.prompt_id for ref in plan.prompts}
    if len(set(asked)) != len(asked) or not planned <= set(asked) <= set(refs):
        raise ValueError(
            f"step {plan.step} must account for each of its {len(planned)} prompts once, got"
            f" {len(accepted)} accepted, {len(deferred)} deferred, {len(dropped)} dropped,"
            f" {len(filtered)} filtered and {len(carried)} carried; repeat the step"
        )
    num_old = plan.num_carried + plan.num_queued
    queued = plan.candidates[plan.num_carried : num_old]
    assert state.queue[: plan.num_queued] == queued, "a round takes the head of the queue"
    unasked = tuple(ref for ref in queued if ref.prompt_id not in asked)
    kept = (*unasked, *state.queue[plan.num_queued :])
    returned = {ref.prompt_id for ref in queued}
    returned |= {before.ref.prompt_id for before in state.carried if before.dispatched.is_returned}
    skipped, num_new = _advance(state, plan.candidates[num_old:], set(asked))
    is_placed = bool(num_new and plan.places)
    num_drawn = plan.places[num_new - 1] + 1 if is_placed else state.num_drawn + num_new
    return replace(
        state,
        queue=(*kept, *(refs[prompt_id] for prompt_id in deferred)),
        skipped=skipped,
        carried=tuple(
            Carried(
                ref=refs[prompt.prompt_id],
                dispatched=Dispatched(
                    version=prompt.version,
                    is_returned=prompt.prompt_id in returned,
                    indices=prompt.indices,
                ),
            )
            for prompt in carried
        ),
        num_drawn=num_drawn,
        num_trained=state.num_trained + len(accepted),
        num_dropped=state.num_dropped + len(dropped),
        num_filtered=state.num_filtered + len(filtered),
        num_unfit=state.num_unfit + num_drawn - state.num_drawn - num_new,
    )


def without_unfit(state: QueueState, unfit: Collection[int]) -> QueueState:
    """The state without waiting prompts of these rows: what could be asked once cannot be any more
    in a resumed run that has less room."""
    queue = tuple(ref for ref in state.queue if row_of(ref) not in unfit)
    skipped = tuple(ref for ref in state.skipped if row_of(ref) not in unfit)
    carried = tuple(prompt for prompt in state.carried if row_of(prompt.ref) not in unfit)
    num_kept = len(queue) + len(skipped) + len(carried)
    num_lost = len(state.queue) + len(state.skipped) + len(state.carried) - num_kept
    num_unfit = state.num_unfit + num_lost
    return replace(state, queue=queue, skipped=skipped, carried=carried, num_unfit=num_unfit)


def row_of(ref: PromptRef) -> int:
    """The dataset's row that a prompt asks."""
    return int(ref.prompt_id.partition("/")[2])


def _advance(
    state: QueueState, upcoming: Sequence[PromptRef], asked: Collection[str]
) -> tuple[tuple[PromptRef, ...], int]:
    """What is skipped now, and how many were newly drawn: up to the last prompt that was asked,
    those before it that were not stay."""
    assert state.skipped[: len(upcoming)] == upcoming[: len(state.skipped)], (
        "what was skipped comes next"
    )
    last = max(
        (place for place, ref in enumerate(upcoming, start=1) if ref.prompt_id in asked), default=0
    )
    passed_over = tuple(ref for ref in upcoming[:last] if ref.prompt_id not in asked)
    return (*passed_over, *state.skipped[last:]), max(0, last - len(state.skipped))
