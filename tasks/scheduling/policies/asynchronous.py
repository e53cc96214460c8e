"""Bounded asynchrony (ROLL-Flash): the rollout of later steps goes on while earlier ones train.

    round s closes ──▶ step s trains, updates, publishes version s
               └─▶ round s + 1 begins at once, over what round s left undecided and new prompts

The async ratio says how far generation may be ahead of training: `staleness` derives the bounds
from it. It plays the part of tail batching's eta_P, too: 1 + ratio times as many groups as a step
trains compete for its slots, and the others go on. A ratio of 0 is the synchronous schedule.

Where the same devices generate and train, `at_update=pause` has them do it in turn:

    round s closes ──▶ what is undecided stops ──▶ step s trains on all devices, publishes
               ──▶ round s + 1 goes on from the tokens that there are, with the new weights
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.records import Running
from tasks.scheduling.asynchronous_round import AsynchronousScheduler, AtDeadline
from tasks.scheduling.batch import BatchAlgebra, BatchConfig, round_shape, times
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import (
    DYNAMIC_SAMPLING,
    RESPONSE_OVERPROVISION,
    PlanningInputs,
    last_round,
)
from tasks.scheduling.staleness import Admission
from tasks.scheduling.wait_for_all import WaitForAll

ASYNCHRONOUS, RETURNED = "asynchronous", "returned"


class AsynchronousConfig(FrozenConfig):
    """Rounds that overlap the training of earlier steps, as far as a bound on staleness allows."""

    kind: Literal["asynchronous"] = Field(
        "asynchronous", description="Generation and training at the same time."
    )
    async_ratio: float = Field(
        1.0,
        ge=0,
        le=64,
        description=(
            "Steps by which generation may be ahead of training, a real number: the mean lag of"
            " what is trained in weight versions; rounded up, the bound of every token's lag. 0 is"
            " the synchronous schedule."
        ),
    )
    extra_lag: int = Field(
        0,
        ge=0,
        le=64,
        description=(
            "Weight versions by which a token may lag beyond that bound. The mean lag stays the"
            " ratio; a group that takes long is passed over for what is complete first, for so many"
            " more steps. Nothing with 'train_anyway', which has no bound."
        ),
    )
    at_deadline: AtDeadline = Field(
        "wait",
        description=(
            "What becomes of a group that is not complete when the last step that may train it is:"
            " 'wait' for it; 'park' it in the long-prompt queue, and wait for it the second time;"
            " 'drop' it, which favours short answers, or 'train_anyway', without a bound: both to"
            " compare with."
        ),
    )
    at_update: Literal["interrupt", "drain", "keep", "pause"] = Field(
        "interrupt",
        description=(
            "What becomes of running responses when newer weights are loaded: 'interrupt' goes on"
            " from their tokens and computes their KV cache again; 'drain' finishes them first and"
            " begins none meanwhile, so that no response is of two versions; 'keep' goes on with"
            " the KV cache of the older weights, which no new response shares; 'pause' stops them"
            " when a step has its groups, so that it trains on the devices that generate, and goes"
            " on from their tokens when it is published."
        ),
    )
    response_overprovision: float = Field(1.0, ge=1, le=4, description=RESPONSE_OVERPROVISION)
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=DYNAMIC_SAMPLING)

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """The counts of the one kind of round, which in the long run launches as many prompts as it
        trains."""
        groups_ahead = math.ceil(self.async_ratio * batch.prompts_per_step)
        # what the last rounds park, and less than a step that was parked before
        parks = self.at_deadline == "park" and self.async_ratio > 0
        most_parked = batch.prompts_per_step + groups_ahead if parks else 0
        return BatchAlgebra(
            rounds=(
                round_shape(
                    ASYNCHRONOUS, batch, response_overprovision=self.response_overprovision
                ),
            ),
            reserve_prompts=times(self.dynamic_sampling, batch.prompts_per_step),
            max_drain_steps=math.ceil(most_parked / batch.prompts_per_step),
            mean_lag=self.async_ratio,
            max_lag=self._max_lag,
            pauses=self.async_ratio > 0 and self.at_update == "pause",
            at_update=self._at_update,
        )

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """A round over undecided prompts, then parked ones if they fill a step, then new ones.
        After the last planned step: over prompts that are still parked, or were left undecided when
        the run was resumed with fewer steps."""
        if turn.is_after_last:
            prompts = turn.state.waiting[: turn.batch.prompts_per_step]
            return last_round(turn, prompts, RETURNED, ASYNCHRONOUS) if prompts else None
        admission = self._admission(turn)
        num_now = max(0, admission.limit(turn.version) - admission.num_before)
        num_new = max(0, admission.limit(turn.step - 1) - admission.num_before)
        queued = _returning(turn, admission)[:num_new]
        algebra = self.algebra(turn.batch)
        num_reserve = algebra.reserve_prompts
        carried = tuple(carried.ref for carried in turn.state.carried)
        turn.check_rows(len(carried) + num_new)
        fresh = turn.upcoming(num_new - len(queued) + num_reserve)
        asked = (*queued, *fresh[: num_new - len(queued)])
        shape = algebra.ordinary
        return RoundPlan(
            step=turn.step,
            kind=shape.kind,
            layout=shape.kind,
            prompts=(*carried, *asked[:num_now]),
            upcoming=asked[num_now:],
            reserve=fresh[num_new - len(queued) :],
            places=turn.places(len(fresh)),
            num_queued=len(queued),
            launch_per_prompt=shape.launch_per_prompt,
            accept_prompts=shape.accept_prompts,
            accept_per_prompt=shape.accept_per_prompt,
            admission=admission if self.async_ratio else None,
            pauses=algebra.pauses,
            at_update=algebra.at_update,
        )

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """The scheduler of a round; with a ratio of 0, and after the last planned step, it waits
        for every launched response."""
        carries = plan.admission is not None
        return AsynchronousScheduler(plan, self.at_deadline) if carries else WaitForAll(plan)

    @property
    def _at_update(self) -> Running:
        """Where engines are idle by then, they run nothing that anybody waits for."""
        is_idle = self.async_ratio == 0 or self.at_update == "pause"
        return Running.DROP if is_idle else Running(self.at_update)

    @property
    def _max_lag(self) -> int | None:
        """Weight versions by which a token lags at most; None if there is no bound."""
        if self.async_ratio == 0:
            return 0
        is_unbounded = self.at_deadline == "train_anyway"
        return None if is_unbounded else math.ceil(self.async_ratio) + self.extra_lag

    def _admission(self, turn: PlanningInputs) -> Admission:
        prompts_per_step = turn.batch.prompts_per_step
        return Admission(
            async_ratio=self.async_ratio,
            extra_lag=self.extra_lag,
            prompts_per_step=prompts_per_step,
            num_steps=turn.num_steps,
            num_before=(turn.step - 1) * prompts_per_step + len(turn.state.carried),
            version=turn.version,
            is_bounded=self._max_lag is not None,
            carried=tuple(carried.dispatched for carried in turn.state.carried),
        )


def _returning(turn: PlanningInputs, admission: Admission) -> tuple[PromptRef, ...]:
    """A step's worth of parked prompts, as soon as there are so many, or as the run has left."""
    num_groups = turn.batch.prompts_per_step
    num_left = turn.num_steps * num_groups - admission.num_before
    has_enough = len(turn.state.queue) >= min(num_groups, num_left)
    return turn.state.queue[:num_groups] if has_enough else ()
