"""The size of a step, and the numbers of prompts and responses that a policy derives from it.
Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.records import Running


class BatchConfig(FrozenConfig):
    """The size of a step."""

    prompts_per_step: int = Field(
        ..., ge=1, description="Prompts (groups) that one step trains, P0."
    )
    responses_per_prompt: int = Field(
        ...,
        ge=2,
        description="Responses per prompt that one step trains, R0; a group compares them.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShape:
    """Numbers of prompts and responses that rounds of one kind launch and train."""

    kind: str  # the name of these rounds in records, reports and pictures
    launch_prompts: int  # prompts that are launched
    launch_per_prompt: int  # responses launched for each of them
    accept_prompts: int  # groups that it trains
    accept_per_prompt: int  # responses of a trained group
    frequency: float = 1.0  # such rounds for each one of the rarest kind, in steady state

    @property
    def launch_responses(self) -> int:
        """Responses that such a round launches."""
        return self.launch_prompts * self.launch_per_prompt


def round_shape(
    kind: str,
    batch: BatchConfig,
    *,
    prompt_overprovision: float = 1.0,
    response_overprovision: float = 1.0,
    frequency: float = 1.0,
) -> RoundShape:
    """The shape of a round that trains one step and launches more than that by these factors."""
    return RoundShape(
        kind=kind,
        launch_prompts=times(prompt_overprovision, batch.prompts_per_step),
        launch_per_prompt=times(response_overprovision, batch.responses_per_prompt),
        accept_prompts=batch.prompts_per_step,
        accept_per_prompt=batch.responses_per_prompt,
        frequency=frequency,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAlgebra:
    """The counts that follow from a policy and a batch, known before a run starts."""

    rounds: tuple[RoundShape, ...]  # of the planned steps; the ordinary kind of round first
    reserve_prompts: int  # further prompts that may take the place of groups whose rewards agree
    max_drain_steps: int = 0  # most steps after the last planned one
    # prompts of a step that are given up for others that finish sooner, and trained in none
    dropped_prompts: int = 0
    scores_last: bool = False  # whether no response is scored before the last one is generated
    # mean lag of trained groups in weight versions while their number is what bounds generation; 0
    # where every round trains or gives up all that it asks
    mean_lag: float = 0.0
    # share of a round's responses that are launched at a time while the rest waits its turn
    under_way: float = 1.0
    pauses: bool = False  # whether nothing is generated while a step trains all the same
    max_lag: int | None = 0  # of any token; None if there is no bound
    # treatment of running responses when newer weights are loaded
    at_update: Running = Running.DROP
    # what keeps the policy from freeing devices in mid-round, with the reason; empty if nothing
    streaming_needs: str = ""

    @property
    def overlaps(self) -> bool:
        """True if a round begins while the step before it trains."""
        return self.is_off_policy and not self.pauses

    @property
    def is_off_policy(self) -> bool:
        """True if a step trains tokens of older weights than those that it updates."""
        return self.mean_lag > 0

    @property
    def ordinary(self) -> RoundShape:
        """The kind of round that a run begins with."""
        return self.rounds[0]

    @property
    def period_steps(self) -> int:
        """Number of steps after which a run in steady state has trained all that it launched."""
        return sum(math.ceil(shape.frequency) for shape in self.rounds)

    def shape_of(self, kind: str) -> RoundShape:
        """The shape of the rounds of this kind. Raises KeyError for an unknown kind."""
        return {shape.kind: shape for shape in self.rounds}[kind]


def times(factor: float, count: int) -> int:
    """The count times the over-provisioning factor, rounded up."""
    return math.ceil(round(count * factor, 6))  # 1.1 * 10 is 11, not 12
