"""Advantages of whole responses: what a reward is worth among its siblings, or in its step.

Kinds that are local to the group can be computed while other groups are still being generated
(invariant 4, docs/architecture.md); the others need the rewards of the whole step. Responses
without a verdict (reward None) neither enter a mean nor get an advantage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.custom_part import CustomPart
from artifacts.fixed_fields import Fixed
from tasks.rewards.base import LARGEST_REWARD

LARGEST_SHAPED_REWARD = 2 * LARGEST_REWARD  # a punishment subtracts at most LARGEST_REWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, mean and deviation of some values, from exact sums: their order does not matter."""

    count: int
    mean: float
    deviation: float  # population standard deviation

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments:
        """The moments of these values; all zero for none."""
        count = max(1, len(values))
        mean = _within(math.fsum(values) / count, values)
        squares = math.fsum((value - mean) ** 2 for value in values)
        return cls(count=len(values), mean=mean, deviation=math.sqrt(squares / count))

    @classmethod
    def together(cls, parts: Sequence[Moments]) -> Moments:
        """The moments of the values of all parts together."""
        count = sum(part.count for part in parts)
        mean = math.fsum(part.count * part.mean for part in parts) / max(1, count)
        mean = _within(mean, [part.mean for part in parts if part.count])
        squares = math.fsum(
            part.count * (part.deviation**2 + (part.mean - mean) ** 2) for part in parts
        )
        return cls(count=count, mean=mean, deviation=math.sqrt(squares / max(1, count)))


def _within(mean: float, values: Sequence[float]) -> float:
    """Clamp a mean to the range of its values: of equal values, division may round it past them."""
    return min(max(mean, min(values)), max(values)) if values else mean


class GrpoAdvantage(FrozenConfig):
    """(r - mean) / (std + epsilon): every group has the same influence, however it spreads."""

    kind: Literal["grpo"] = Field(
        default="grpo", description="Advantage by the group's mean and standard deviation."
    )
    epsilon: Fixed[float] = 1e-06  # added to the standard deviation before dividing by it

    spans_step: ClassVar[bool] = False
    leaves_flat_groups_out: ClassVar[bool] = True

    def of(self, rewards: Sequence[float], moments: Moments | None) -> list[float]:
        group = Moments.of(rewards)
        return [(reward - group.mean) / (group.deviation + self.epsilon) for reward in rewards]


class DrGrpoAdvantage(FrozenConfig):
    """r - mean: dividing by the deviation favours questions nearly always or never answered."""

    kind: Literal["dr_grpo"] = Field(
        default="dr_grpo", description="Advantage by the group's mean alone."
    )

    spans_step: ClassVar[bool] = False
    leaves_flat_groups_out: ClassVar[bool] = True

    def of(self, rewards: Sequence[float], moments: Moments | None) -> list[float]:
        mean = Moments.of(rewards).mean
        return [reward - mean for reward in rewards]


class ReinforcePlusPlusAdvantage(FrozenConfig):
    """(c - mean) / (std + epsilon), with mean and deviation over all responses of the step
    (REINFORCE++, arXiv 2501.03262): a group's few rewards estimate their spread badly. c is the
    reward itself (baseline step), or the reward less its group's mean (baseline group, "REINFORCE++
    with baseline"), whose mean over the step is zero. Responses count alike, whatever their
    lengths. No gradient can be computed before the step's last reward is there. With a window, mean
    and deviation are those of the last steps together. Tail batching sorts prompts by difficulty:
    by its own mean, a long round of hard questions praises answers that were right by luck; by that
    of a whole period it is judged as a synchronous step would be."""

    kind: Literal["reinforce_plus_plus"] = Field(
        default="reinforce_plus_plus",
        description="Advantage by the mean and standard deviation of the whole step.",
    )
    baseline: Literal["group", "step"] = Field(
        default="group",
        description="Whose mean is subtracted from a reward; the deviation is the step's always.",
    )
    window: int = Field(
        default=1,
        ge=1,
        description=(
            "Steps whose rewards mean and deviation are taken of: this one and those before it."
            " With tail batching a period, so that a round's own difficulty does not count."
        ),
    )
    epsilon: Fixed[float] = 1e-06  # added to the standard deviation before dividing by it
    spans_step: ClassVar[bool] = True

    @property
    def leaves_flat_groups_out(self) -> bool:
        return self.baseline == "group"

    def centred(self, rewards: Sequence[float]) -> list[float]:
        """Subtract the baseline within one group from its rewards; the step's moments are taken
        over these values of all groups."""
        mean = Moments.of(rewards).mean if self.baseline == "group" else 0.0
        return [reward - mean for reward in rewards]

    def of(self, rewards: Sequence[float], moments: Moments | None) -> list[float]:
        assert moments is not None, "needs the moments of its step"
        mean = 0.0 if self.baseline == "group" else moments.mean
        spread = moments.deviation + self.epsilon
        return [(value - mean) / spread for value in self.centred(rewards)]


class GaeAdvantage(FrozenConfig):
    """Generalised advantage estimation: each token's advantage comes from a critic's values (PPO as
    published, arXiv 1506.02438 and 1707.06347), not from the group's other responses. `of` returns
    the rewards; the learner makes advantages of them (`gae`). Whitening needs all tokens of the
    step."""

    kind: Literal["gae"] = Field(
        default="gae", description="Advantage of each token by the values of learner.critic."
    )
    gamma: float = Field(
        default=1.0, gt=0, le=1, description="Discount of a reward for each token before it."
    )
    trace_decay: float = Field(
        default=0.95,
        ge=0,
        le=1,
        description=(
            "GAE's lambda: 1 trusts the reward alone, with the value as a baseline; 0 the value of"
            " the next token alone."
        ),
    )
    whiten: bool = Field(
        default=True,
        description="Shift and scale the advantages of a step's tokens to mean 0, deviation 1.",
    )
    spans_step: ClassVar[bool] = True
    leaves_flat_groups_out: ClassVar[bool] = False

    def of(self, rewards: Sequence[float], moments: Moments | None) -> list[float]:
        return list(rewards)


class CustomAdvantage(CustomPart):
    """The advantages of a class of the user's, whose method `of(rewards)` compares within the
    group: it gets the rewards of the responses with a verdict, and returns a number for each."""

    check: ClassVar[str] = "advantage"
    methods: ClassVar[tuple[str, ...]] = ("of",)
    spans_step: ClassVar[bool] = False
    kind: Literal["custom"] = Field(
        default="custom", description="Chooses advantages of your own, within a group."
    )

    @property
    def leaves_flat_groups_out(self) -> bool:
        """That of the user's class; True if it says nothing."""
        return bool(getattr(self.made(), "leaves_flat_groups_out", True))

    @property
    def zero_sum(self) -> bool:
        """True if the user's class says that the advantages of a group sum to zero."""
        return bool(getattr(self.made(), "zero_sum", False))

    def of(self, rewards: Sequence[float], moments: Moments | None) -> list[float]:
        """Returns the user's numbers. Raises ValueError unless each is finite and there is one for
        each reward."""
        part = self.made()
        with self.calling("of"):
            values = [float(value) for value in part.of(list(rewards))]
        if len(values) != len(rewards) or not all(map(math.isfinite, values)):
            raise ValueError(
                f"of(rewards) of {self.path} must return a finite number for each of the rewards"
                f" {list(rewards)}, got {values}; mend it, and try it with 'rollflow check"
                f" advantage {self.path}'"
            )
        return values


Advantage = (
    GrpoAdvantage
    | DrGrpoAdvantage
    | ReinforcePlusPlusAdvantage
    | GaeAdvantage
    | CustomAdvantage  # a class of the user's
)
"""`of(rewards, moments)`: one number per reward of a group, given the step's moments where they
count (`spans_step`). `leaves_flat_groups_out`: equal rewards have no advantage."""


def group_advantages(
    rewards: Sequence[float | None], advantage: Advantage, moments: Moments | None = None
) -> list[float | None]:
    """One advantage per response of a group, None for responses without a verdict. If it compares
    within the group, all are exactly 0 when the rewards are equal or fewer than two responses have
    a verdict. Raises ValueError for a reward that is not finite or too large."""
    verdicts = [reward for reward in rewards if reward is not None]
    if not all(abs(reward) <= LARGEST_SHAPED_REWARD for reward in verdicts):  # NaN neither
        raise ValueError(
            f"rewards must be None or finite and within {LARGEST_SHAPED_REWARD:,.0f}, got"
            f" {list(rewards)}; let the reward return None (infra) instead"
        )
    is_flat = len(verdicts) < 2 or min(verdicts) == max(verdicts)
    if is_flat and advantage.leaves_flat_groups_out:
        return [None if reward is None else 0.0 for reward in rewards]
    values = iter(advantage.of(verdicts, moments))
    return [None if reward is None else next(values) for reward in rewards]


def step_moments(groups: Sequence[Sequence[float | None]], advantage: Advantage) -> Moments | None:
    """The moments of one step's rewards, given by group; None for an advantage that needs none."""
    if not isinstance(advantage, ReinforcePlusPlusAdvantage):
        return None
    values: list[float] = []
    for rewards in groups:
        values += advantage.centred([reward for reward in rewards if reward is not None])
    return Moments.of(values)
