"""The interface of a scheduling policy, and the rounds that several policies plan: over new prompts
or waiting ones, and the drain.

    config.scheduling ── algebra(batch) ──▶ explain, planner, checks before a run
          │
          └─ plan_round(turn) ─▶ RoundPlan ─▶ scheduler(plan) ─▶ the round is played
                  ▲                                                      │
                  └── QueueState ◀── finish_round ◀── accepted, deferred, dropped, filtered

A policy is its own configuration: a frozen pydantic model with a `kind`, chosen under
`scheduling.kind`. Its only memory from step to step is the `QueueState`, so that planning twice
from the state of a commit gives the same round. All other code reads a round's plan and the
algebra, and never asks which policy made them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tasks.scheduling.batch import BatchAlgebra, BatchConfig, RoundShape
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.prompt_stream import NO_SWEEP, Answering, draw_places, draw_prompts
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.quotas import domain_quotas

DYNAMIC_SAMPLING = (
    "Further prompts that a round may ask in place of groups whose rewards all agree, per prompt"
    " that it trains (dynamic sampling); 0 trains such groups as they are."
)

RewardTiming = Literal["per_response", "after_rollout"]
REWARD_TIMING = (
    "When responses are scored: each as it finishes, or all once nothing generates any more, to"
    " compare with."
)
# why no device can be freed in mid-round when responses are scored after the rollout
STREAMING_NEEDS_VERDICTS = (
    "scheduling.reward_timing 'per_response', got 'after_rollout': no group would be accepted while"
    " engines generate"
)

RESPONSE_OVERPROVISION = (
    "Responses launched of a prompt that is asked for the first time, per response that is trained;"
    " above 1 a step is faster and keeps the shorter ones."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningInputs:
    """The inputs from which a policy plans the round of a step."""

    state: QueueState  # where the drawn prompts are
    batch: BatchConfig  # what the step trains
    step: int  # from 1
    num_steps: int  # planned steps; after the last one only waiting prompts are played
    domains: Sequence[str]  # of every row of the dataset
    seed: int | None  # of the order in which rows are asked; None: as they stand
    unfit: Collection[int] = ()  # rows that are never asked
    # the newest weight version that every engine has; None for that of the step before
    published: int | None = None
    answering: Answering = NO_SWEEP  # the adapters that answer

    @property
    def version(self) -> int:
        """The weight version that the round begins with."""
        return self.step - 1 if self.published is None else self.published

    @property
    def is_after_last(self) -> bool:
        """True if all planned steps have been played, so that no new prompt may be launched."""
        return self.step > self.num_steps

    def upcoming(self, num_prompts: int) -> tuple[PromptRef, ...]:
        """The next num_prompts prompts that were not launched yet: skipped ones, then new ones."""
        num_new = max(0, num_prompts - len(self.state.skipped))
        drawn = draw_prompts(
            self.domains, self.seed, self.state.num_drawn, num_new, self.unfit, self.answering
        )
        return (*self.state.skipped[:num_prompts], *drawn)

    def places(self, num_prompts: int) -> tuple[int, ...]:
        """The places in the prompt stream of the new prompts that `upcoming` returns; empty if the
        dataset has no unfit rows."""
        if not self.unfit:
            return ()
        num_new = max(0, num_prompts - len(self.state.skipped))
        num_rows, num_drawn, times = len(self.domains), self.state.num_drawn, self.answering.times
        return draw_places(num_rows, self.seed, num_drawn, num_new, self.unfit, times)

    def check_rows(self, launch_prompts: int) -> None:
        """Raise ValueError if a round would launch the same row twice for an adapter."""
        num_rows, num_asked = len(self.domains) - len(self.unfit), launch_prompts
        if num_rows * self.answering.times < num_asked:
            raise ValueError(
                "a dataset must have as many rows as a round launches prompts "
                f"({-(-num_asked // self.answering.times)}), got {num_rows}; "
                "use more rows or lower batch.prompts_per_step"
            )


class Policy(Protocol):
    """The schedule of a run's rounds; pure, and compared with ``==``."""

    @property
    def kind(self) -> str:
        """The policy's name under `scheduling.kind`."""
        ...

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """The counts of the policy's rounds, known before anything is started."""
        ...

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """The round of a step; None when the run is over.

        Raises ValueError if the dataset is too small for the round.
        """
        ...

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """The scheduler of a round that the policy planned."""
        ...


SHORT, LONG, DRAIN = "short", "long", "drain"


def queue_round(
    turn: PlanningInputs,
    shape: RoundShape,
    algebra: BatchAlgebra,
    waiting: tuple[PromptRef, ...] = (),
    *,
    chooses: bool = False,
) -> RoundPlan:
    """A round of this shape over the waiting prompts and, for the rest of its places, new ones.
    chooses: whether the round keeps the groups that finish first, within each domain's quota.
    Raises ValueError if a round over new prompts alone would launch a row twice."""
    if not waiting:
        turn.check_rows(shape.launch_prompts)
    num_new = shape.launch_prompts - len(waiting)
    upcoming = turn.upcoming(num_new + algebra.reserve_prompts)
    prompts = (*waiting, *upcoming[:num_new])
    return RoundPlan(
        step=turn.step,
        kind=shape.kind,
        layout=shape.kind,
        prompts=prompts,
        num_queued=len(waiting),
        launch_per_prompt=shape.launch_per_prompt,
        accept_prompts=shape.accept_prompts,
        accept_per_prompt=shape.accept_per_prompt,
        quotas=domain_quotas(prompts, shape.accept_prompts) if chooses else (),
        reserve=upcoming[num_new:],
        places=turn.places(len(upcoming)),
        scores_last=algebra.scores_last,
    )


def drain_round(turn: PlanningInputs, queue: tuple[PromptRef, ...]) -> RoundPlan | None:
    """The next round of a drain, which plays the queue, in this order, in as few rounds as possible
    of about equal size: a tiny last round would make a noisy update. A drain loads the engines like
    a long round. None if the queue is empty.

    It has no reserve: no new prompt is drawn, and groups whose rewards agree are trained as they
    are.
    """
    if not queue:
        return None
    num_rounds = math.ceil(len(queue) / turn.batch.prompts_per_step)
    return last_round(turn, queue[: math.ceil(len(queue) / num_rounds)], DRAIN, LONG)


def last_round(
    turn: PlanningInputs, prompts: tuple[PromptRef, ...], kind: str, layout: str
) -> RoundPlan:
    """A round after the last planned step, which waits for all responses to waiting prompts."""
    return RoundPlan(
        step=turn.step,
        kind=kind,
        layout=layout,
        prompts=prompts,
        num_queued=len(prompts),
        is_drain=True,
        launch_per_prompt=turn.batch.responses_per_prompt,
        accept_prompts=len(prompts),
        accept_per_prompt=turn.batch.responses_per_prompt,
    )
