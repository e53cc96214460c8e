"""Tail batching (RollPacker, section 4.1): short rounds that keep the first to finish, long rounds
over the prompts that they gave up on.

    P0 prompts in the long-prompt queue ──▶ long round: the head of the queue, all waited for
    fewer ──▶ short round: eta_P*P0 new prompts x eta_R*R0 responses, the first P0 x R0 are kept
    steps over ──▶ drain: what is left in the queue, in rounds of about the same size

    short round:
    a prompt has R0 verdicts and its domain a free slot  ->  accept it, abort its siblings
    a domain has no free slot any more                   ->  abort the rest of the domain
    all P0 slots are taken                               ->  abort the rest, close;
                                                             defer its prompts in launch order
    its rewards agree and the round has a reserve        ->  filter it, launch another
                                                             (`dynamic_sampling`)

Slots follow the launched mix of domains (`quotas`) and therefore can always be filled. Long rounds
have none and need no scheduler of their own (`wait_for_all`). Within a prompt the first R0 verdicts
count, which favours short answers when eta_R > 1. No rule can do better and still gain: what is
trained before all eta_R*R0 are in cannot contain those that are still running. With eta_R = 1
nothing is chosen within a prompt; `acceptance` says what is left of the bias then, and on which
engines nothing is.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.scheduling.batch import BatchAlgebra, BatchConfig, RoundShape, times
from tasks.scheduling.dynamic_sampling import Reserve
from tasks.scheduling.events import (
    AcceptGroup,
    CloseRound,
    Decision,
    Defer,
    Drop,
    Event,
    Filter,
    PromptRef,
    RoundPlan,
    RoundScheduler,
)
from tasks.scheduling.groups import GroupProgress, describe_missing
from tasks.scheduling.policies.base import DYNAMIC_SAMPLING, Turn
from tasks.scheduling.quotas import Slots, domain_quotas
from tasks.scheduling.wait_for_all import WaitForAll

SHORT, LONG, DRAIN = "short", "long", "drain"


class TailBatchingConfig(BaseModel):
    """Short rounds that launch more than they keep, long rounds over what they gave up on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["tail_batching"] = Field(
        "tail_batching", description="RollPacker's short and long rounds."
    )
    prompt_overprovision: float = Field(
        1.25,
        ge=1,
        le=4,
        description=(
            "Prompts a short round launches per prompt it keeps; 1 means that no prompt is ever"
            " deferred."
        ),
    )
    response_overprovision: float = Field(
        1.0,
        ge=1,
        le=4,
        description=(
            "Responses a short round launches per response it keeps; above 1 it is faster and keeps"
            " the shorter ones."
        ),
    )
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=DYNAMIC_SAMPLING)
    drain: bool = Field(
        True,
        description=(
            "Train what is left in the long-prompt queue in extra steps after the last planned one."
        ),
    )

    @model_validator(mode="after")
    def _speculates(self) -> Self:
        if self.prompt_overprovision == 1 and self.response_overprovision == 1:
            raise ValueError(
                "tail batching must over-provision prompts or responses, got 1.0 for both; raise"
                " one or use kind 'sync'"
            )
        return self

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """Short and long rounds in the ratio 1/(eta_P - 1); short ones alone if nothing is ever
        deferred."""
        short = self._short(batch)
        num_deferred = short.launch_prompts - short.accept_prompts
        rounds = (short, _long(batch)) if num_deferred else (short,)
        # P0 - 1 prompts before the last short round, and those that it defers
        longest_queue = short.launch_prompts - 1 if num_deferred else 0
        return BatchAlgebra(
            rounds=rounds,
            reserve_prompts=times(self.dynamic_sampling, batch.prompts_per_step),
            max_drain_steps=math.ceil(longest_queue / short.accept_prompts) if self.drain else 0,
        )

    def plan_round(self, turn: Turn) -> RoundPlan | None:
        """A long round as soon as the queue can fill one, else a short one; after the last step the
        drain."""
        if turn.is_after_last:
            return _drain_round(turn) if self.drain and turn.state.queue else None
        num_reserve = times(self.dynamic_sampling, turn.batch.prompts_per_step)
        if len(turn.state.queue) >= turn.batch.prompts_per_step:
            return _long_round(turn, num_reserve)
        return self._short_round(turn, num_reserve)

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """Short rounds choose, the others wait for all."""
        return ShortRoundScheduler(plan) if plan.kind == SHORT else WaitForAll(plan)

    def _short(self, batch: BatchConfig) -> RoundShape:
        launch_prompts = times(self.prompt_overprovision, batch.prompts_per_step)
        num_deferred = launch_prompts - batch.prompts_per_step
        return RoundShape(
            kind=SHORT,
            launch_prompts=launch_prompts,
            launch_per_prompt=times(self.response_overprovision, batch.responses_per_prompt),
            accept_prompts=batch.prompts_per_step,
            accept_per_prompt=batch.responses_per_prompt,
            frequency=batch.prompts_per_step / num_deferred if num_deferred else 1.0,
        )

    def _short_round(self, turn: Turn, num_reserve: int) -> RoundPlan:
        shape = self._short(turn.batch)
        turn.check_rows(shape.launch_prompts)
        upcoming = turn.upcoming(shape.launch_prompts + num_reserve)
        prompts = upcoming[: shape.launch_prompts]
        return RoundPlan(
            step=turn.step,
            kind=SHORT,
            layout=SHORT,
            prompts=prompts,
            launch_per_prompt=shape.launch_per_prompt,
            accept_prompts=shape.accept_prompts,
            accept_per_prompt=shape.accept_per_prompt,
            quotas=domain_quotas(prompts, shape.accept_prompts),
            reserve=upcoming[shape.launch_prompts :],
            places=turn.places(len(upcoming)),
        )


def _long(batch: BatchConfig) -> RoundShape:
    return RoundShape(
        kind=LONG,
        launch_prompts=batch.prompts_per_step,
        launch_per_prompt=batch.responses_per_prompt,
        accept_prompts=batch.prompts_per_step,
        accept_per_prompt=batch.responses_per_prompt,
    )


def _long_round(turn: Turn, num_reserve: int) -> RoundPlan:
    prompts = turn.state.queue[: turn.batch.prompts_per_step]
    reserve, places = turn.upcoming(num_reserve), turn.places(num_reserve)
    return _queue_round(turn, LONG, prompts, reserve, places)


def _drain_round(turn: Turn) -> RoundPlan:
    """The next of as few rounds as possible, all of about the same size: a tiny last one would make
    a noisy update.

    Without a reserve: nothing new is drawn, groups whose rewards agree are trained as they are.
    """
    queue = turn.state.queue
    num_rounds = math.ceil(len(queue) / turn.batch.prompts_per_step)
    return _queue_round(turn, DRAIN, queue[: math.ceil(len(queue) / num_rounds)])


def _queue_round(
    turn: Turn,
    kind: str,
    prompts: tuple[PromptRef, ...],
    reserve: tuple[PromptRef, ...] = (),
    places: tuple[int, ...] = (),
) -> RoundPlan:
    """A round over the head of the long-prompt queue; a drain loads the engines like a long one."""
    return RoundPlan(
        step=turn.step,
        kind=kind,
        layout=LONG,
        prompts=prompts,
        num_queued=len(prompts),
        is_drain=turn.is_after_last,
        launch_per_prompt=turn.batch.responses_per_prompt,
        accept_prompts=len(prompts),
        accept_per_prompt=turn.batch.responses_per_prompt,
        reserve=reserve,
        places=places,
    )


class ShortRoundScheduler:
    """Accepts exactly `accept_prompts` groups; fewer only when dropped prompts leave too few to
    choose from."""

    def __init__(self, plan: RoundPlan) -> None:
        assert plan.accept_prompts <= len(plan.prompts), "a round can accept only what it launched"
        self._plan = plan
        self._reserve = Reserve(plan)
        self._undecided = {ref.prompt_id: GroupProgress(ref, plan) for ref in plan.prompts}
        self._slots = Slots(plan.quotas, plan.accept_prompts)
        self._is_closed = False

    def start(self) -> list[Decision]:
        groups = self._undecided.values()
        return [
            launch for group in groups for launch in group.launch(self._plan.launch_per_prompt)
        ] + self._close_full_domains()

    def handle(self, event: Event) -> list[Decision]:
        group = self._undecided.get(event.prompt_id)
        if group is None or self._is_closed:
            return []
        decisions: list[Decision] = [*group.handle(event)]
        if group.is_hopeless:
            decisions += self._drop(group)
        decisions += self._accept_complete()
        return decisions if self._slots.num_free else [*decisions, *self._close()]

    def waiting_for(self) -> str:
        return describe_missing(
            (group for group in self._undecided.values() if group.is_open), self._slots.num_free
        )

    def _accept_complete(self) -> list[Decision]:
        decisions: list[Decision] = []
        for group in [group for group in self._undecided.values() if group.is_complete]:
            if self._slots.is_free(group.ref.domain):
                del self._undecided[group.ref.prompt_id]
                decisions += self._accept(group)
        return decisions + self._close_full_domains() if decisions else []

    def _accept(self, group: GroupProgress) -> list[Decision]:
        """Give the group a slot of its domain, or, if it is filtered, launch another of its domain
        in its place."""
        further = self._reserve.replacement(group)
        if further is not None:
            self._undecided[further.ref.prompt_id] = further
            return [
                *group.close(),
                Filter(prompt_id=group.ref.prompt_id),
                *further.launch(self._plan.launch_per_prompt),
            ]
        self._slots.take(group.ref.domain)
        return [
            AcceptGroup(prompt_id=group.ref.prompt_id, indices=group.accepted_indices()),
            *group.close(),
        ]

    def _close_full_domains(self) -> list[Decision]:
        full = [
            group
            for group in self._undecided.values()
            if group.is_open and not self._slots.is_free(group.ref.domain)
        ]
        return [abort for group in full for abort in group.close()]

    def _drop(self, group: GroupProgress) -> list[Decision]:
        """Give the prompt up; a slot that its domain cannot fill any more goes to a domain that
        can."""
        del self._undecided[group.ref.prompt_id]
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
        """A group that was too late is asked again in a long round, unless it is complete and would
        be filtered there."""
        prompt_id = group.ref.prompt_id
        return (
            Filter(prompt_id=prompt_id)
            if self._reserve.filters(group)
            else Defer(prompt_id=prompt_id)
        )
