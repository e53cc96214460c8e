"""The seam of a scheduling policy: what every step plays.

    config.scheduling ── algebra(batch) ──▶ explain, planner, checks before a run
          │
          └─ plan_round(turn) ─▶ RoundPlan ─▶ scheduler(plan) ─▶ the round is played
                  ▲                                                      │
                  └── QueueState ◀── finish_round ◀── accepted, deferred, dropped, filtered

A policy is one file of this folder and one line of `registry`. It is its own configuration: a
frozen pydantic model with a `kind`, chosen under `scheduling.kind`. What it remembers from step to
step is where the prompts are (`QueueState`), so that planning twice from the state of a commit
gives the same round. Everybody else reads what the plan and the algebra say of a round, and never
asks which policy made them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tasks.scheduling.batch import BatchAlgebra, BatchConfig
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.prompt_stream import draw_places, draw_prompts
from tasks.scheduling.queue_state import QueueState

DYNAMIC_SAMPLING = (
    "Further prompts that a round may ask in place of groups whose rewards all agree, per prompt"
    " that it trains (dynamic sampling); 0 trains such groups as they are."
)

RewardTiming = Literal["per_response", "after_rollout"]
REWARD_TIMING = (
    "When responses are scored: each as it finishes, or all once nothing generates any more, to"
    " compare with."
)
# why no device can be freed then
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
    """What the round of a step is planned from."""

    state: QueueState  # where the drawn prompts are
    batch: BatchConfig  # what the step trains
    step: int  # from 1
    num_steps: int  # the planned ones; only what is left of them is played after the last
    domains: Sequence[str]  # of every row of the dataset
    seed: int | None  # of the order in which rows are asked; None: as they stand
    unfit: Collection[int] = ()  # rows that are never asked
    # the newest weight version that every engine has; None for that of the step before
    published: int | None = None

    @property
    def version(self) -> int:
        """The weight version that the round begins with."""
        return self.step - 1 if self.published is None else self.published

    @property
    def is_after_last(self) -> bool:
        """Whether all planned steps have been played, so that nothing new may be asked."""
        return self.step > self.num_steps

    def upcoming(self, num_prompts: int) -> tuple[PromptRef, ...]:
        """The next prompts that were not asked yet: those that were skipped, then new ones."""
        num_new = max(0, num_prompts - len(self.state.skipped))
        drawn = draw_prompts(self.domains, self.seed, self.state.num_drawn, num_new, self.unfit)
        return (*self.state.skipped[:num_prompts], *drawn)

    def places(self, num_prompts: int) -> tuple[int, ...]:
        """Where the new ones among them stand in the prompt stream, if it has unfit rows."""
        if not self.unfit:
            return ()
        num_new = max(0, num_prompts - len(self.state.skipped))
        return draw_places(len(self.domains), self.seed, self.state.num_drawn, num_new, self.unfit)

    def check_rows(self, launch_prompts: int) -> None:
        """ValueError if a round would ask the same row twice."""
        num_rows = len(self.domains) - len(self.unfit)
        if num_rows < launch_prompts:
            raise ValueError(
                "a dataset must have as many rows as a round launches prompts "
                f"({launch_prompts}), got {num_rows}; "
                "use more rows or lower batch.prompts_per_step"
            )


class Policy(Protocol):
    """How the rounds of a run are scheduled; pure, and compared with ``==``."""

    @property
    def kind(self) -> str:
        """Its name under `scheduling.kind`."""
        ...

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        """The counts of its rounds, known before anything is started."""
        ...

    def plan_round(self, turn: PlanningInputs) -> RoundPlan | None:
        """The round of a step; None when the run is over.

        ValueError if the dataset is too small for it.
        """
        ...

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        """Who decides within a round that it planned."""
        ...
