"""Which round a step plays, and what is left for later: the long-prompt queue as a pure state
machine.

    state --plan_round--> plan --(the round is driven)--> accepted, deferred, dropped, filtered
    --finish_round--> state

Planning twice from the same state gives the same plan, so the state of the last commit is all that
a resumed run needs. Leaves out what happens inside a round (`baselines`, `tail_batching`) and what
is left after it (`queue_state`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.scheduling.baselines import SyncScheduler
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.prompt_stream import draw_places, draw_prompts
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.scheduling.quotas import domain_quotas
from tasks.scheduling.tail_batching import ShortRoundScheduler

__all__ = [
    "BatchAlgebra",
    "BatchConfig",
    "QueueState",
    "SchedulingConfig",
    "SyncConfig",
    "TailBatchingConfig",
    "batch_algebra",
    "finish_round",
    "make_scheduler",
    "plan_round",
]

_FLAT_GROUPS = (
    "Further prompts that a round may ask in place of groups whose rewards all agree, per prompt"
    " that it trains (dynamic sampling); 0 trains such groups as they are."
)


class BatchConfig(BaseModel):
    """What one step trains."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompts_per_step: int = Field(
        ..., ge=1, description="Prompts (groups) that one step trains, P0."
    )
    responses_per_prompt: int = Field(
        ...,
        ge=2,
        description="Responses per prompt that one step trains, R0; a group compares them.",
    )


class SyncConfig(BaseModel):
    """Every step launches exactly what it trains and waits for all of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sync"] = Field("sync", description="Synchronous steps without speculation.")
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=_FLAT_GROUPS)
    reward_timing: Literal["per_response", "after_rollout"] = Field(
        "per_response",
        description=(
            "When responses are scored: each as it finishes, or all once nothing generates any"
            " more, to compare with; tail batching has no such choice, its short rounds close by"
            " verdicts."
        ),
    )


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
    dynamic_sampling: float = Field(0.0, ge=0, le=16, description=_FLAT_GROUPS)
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


SchedulingConfig = Annotated[SyncConfig | TailBatchingConfig, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAlgebra:
    """The counts that follow from a config."""

    launch_prompts: int  # prompts launched by an ordinary step
    launch_per_prompt: int  # responses launched for each of them
    accept_prompts: int  # P0
    accept_per_prompt: int  # R0
    reserve_prompts: int  # further prompts that may take the place of groups whose rewards agree

    @property
    def short_rounds_per_long(self) -> float:
        """Short rounds for each long one in steady state, 1/(eta_P - 1); infinite when nothing is
        ever deferred."""
        deferred = self.launch_prompts - self.accept_prompts
        return self.accept_prompts / deferred if deferred else math.inf


def batch_algebra(batch: BatchConfig, scheduling: SyncConfig | TailBatchingConfig) -> BatchAlgebra:
    """Over-provisioned counts are rounded up."""
    eta_prompts, eta_responses = 1.0, 1.0
    if isinstance(scheduling, TailBatchingConfig):
        eta_prompts, eta_responses = (
            scheduling.prompt_overprovision,
            scheduling.response_overprovision,
        )
    return BatchAlgebra(
        launch_prompts=_over(batch.prompts_per_step, eta_prompts),
        launch_per_prompt=_over(batch.responses_per_prompt, eta_responses),
        accept_prompts=batch.prompts_per_step,
        accept_per_prompt=batch.responses_per_prompt,
        reserve_prompts=_over(batch.prompts_per_step, scheduling.dynamic_sampling),
    )


def _over(count: int, factor: float) -> int:
    return math.ceil(round(count * factor, 6))  # 1.1 * 10 is 11, not 12


def plan_round(
    state: QueueState,
    batch: BatchConfig,
    scheduling: SyncConfig | TailBatchingConfig,
    *,
    domains: Sequence[str],
    seed: int,
    step: int,
    num_steps: int,
    unfit: Collection[int] = (),
) -> RoundPlan | None:
    """The round of a step, from 1; after step num_steps the drain of the queue, then None.

    `domains`: one per dataset row. `unfit`: rows that are never asked.
    """
    algebra = batch_algebra(batch, scheduling)
    if step > num_steps:
        drains = isinstance(scheduling, TailBatchingConfig) and scheduling.drain
        return _plan_drain(state, algebra, step) if drains and state.queue else None
    num_upcoming = algebra.launch_prompts + algebra.reserve_prompts
    num_new = max(0, num_upcoming - len(state.skipped))
    upcoming = (
        *state.skipped[:num_upcoming],
        *draw_prompts(domains, seed, state.num_drawn, num_new, unfit),
    )
    places = draw_places(len(domains), seed, state.num_drawn, num_new, unfit) if unfit else ()
    if len(state.queue) >= algebra.accept_prompts:
        long = _plan_queue(
            state.queue[: algebra.accept_prompts],
            algebra,
            step,
            "long",
            upcoming[: algebra.reserve_prompts],
        )
        return replace(long, places=places)
    if len(domains) - len(unfit) < algebra.launch_prompts:
        raise ValueError(
            "a dataset must have as many rows as a round launches prompts "
            f"({algebra.launch_prompts}), got {len(domains) - len(unfit)}; "
            "use more rows or lower batch.prompts_per_step"
        )
    prompts = upcoming[: algebra.launch_prompts]
    short = isinstance(scheduling, TailBatchingConfig)
    return RoundPlan(
        step=step,
        kind="short" if short else "sync",
        scores_last=isinstance(scheduling, SyncConfig)
        and scheduling.reward_timing == "after_rollout",
        prompts=prompts,
        launch_per_prompt=algebra.launch_per_prompt,
        accept_prompts=algebra.accept_prompts,
        accept_per_prompt=algebra.accept_per_prompt,
        quotas=domain_quotas(prompts, algebra.accept_prompts) if short else (),
        reserve=upcoming[algebra.launch_prompts :],
        places=places,
    )


def _plan_drain(state: QueueState, algebra: BatchAlgebra, step: int) -> RoundPlan:
    """The next of as few rounds as possible, all of about the same size: a tiny last one would make
    a noisy update.

    Without a reserve: nothing new is drawn, groups whose rewards agree are trained as they are.
    """
    num_rounds = math.ceil(len(state.queue) / algebra.accept_prompts)
    return _plan_queue(
        state.queue[: math.ceil(len(state.queue) / num_rounds)], algebra, step, "drain", ()
    )


def _plan_queue(
    prompts: tuple[PromptRef, ...],
    algebra: BatchAlgebra,
    step: int,
    kind: Literal["long", "drain"],
    reserve: tuple[PromptRef, ...],
) -> RoundPlan:
    return RoundPlan(
        step=step,
        kind=kind,
        prompts=prompts,
        launch_per_prompt=algebra.accept_per_prompt,
        accept_prompts=len(prompts),
        accept_per_prompt=algebra.accept_per_prompt,
        quotas=(),
        reserve=reserve,
    )


def make_scheduler(plan: RoundPlan) -> RoundScheduler:
    """The scheduler that plays this round."""
    return ShortRoundScheduler(plan) if plan.kind == "short" else SyncScheduler(plan)
