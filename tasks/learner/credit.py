"""Which tokens answer for which reward: a response as a whole (`advantage`), or each turn for
itself. A kind of either is one line of the union `Credit`. Pure.

    paid for each turn      r_0 ... r_n, what the environment paid
    return of a turn        G_k = r_k + gamma G_(k+1)
    norm(x in X)            (x - mean X) / (deviation X + epsilon)

    turn_returns            A_k = norm(G_k in the returns of all siblings' turns k)
    anchor_states           A_k = w_episode norm(R in the rewards of all siblings)
                                + w_state norm(G_k in the returns of all turns that read the same)

Advantages of turns are local to the group. Where there is nothing to compare with, norm is 0.
Leaves out the advantages of single tokens by a critic (`gae`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.fixed_fields import Fixed
from artifacts.records import Generated, Group
from tasks.learner.advantage import (
    DrGrpoAdvantage,
    GaeAdvantage,
    GrpoAdvantage,
    Moments,
    ReinforcePlusPlusAdvantage,
    group_advantages,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRewards:
    """What a response met with, turn by turn; one that is no episode is a single turn. A turn in
    which nothing was sampled is none."""

    reward: float  # of all of it, as training sees it
    rewards: tuple[float, ...]  # paid for each turn; they sum to `reward`
    states: tuple[str, ...]  # what the model read before each


def played(generated: Generated, reward: float) -> TurnRewards:
    """What the verdict adds to what the environment paid (a punishment, another's judgement) is
    paid for the last turn."""
    if generated.episode is None:
        return TurnRewards(reward=reward, rewards=(reward,), states=("",))
    turns = [turn for turn in generated.episode.turns if turn.num_sampled]
    paid = [turn.reward or 0.0 for turn in turns]
    if paid:
        paid[-1] += reward - math.fsum(paid)
    return TurnRewards(
        reward=reward, rewards=tuple(paid), states=tuple(turn.observation for turn in turns)
    )


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """What was paid from each turn on, discounted for each turn that it came later."""
    found: list[float] = []
    later = 0.0
    for reward in reversed(rewards):
        later = reward + gamma * later
        found.append(later)
    return found[::-1]


def normed(
    values: Sequence[Sequence[float]], keys: Sequence[Sequence[Hashable]], epsilon: float
) -> list[list[float]]:
    """Each value of each response among all values of the group with its key; 0 where these are
    equal, or there is no other."""
    alike: defaultdict[Hashable, list[float]] = defaultdict(list)
    for own, names in zip(values, keys, strict=True):
        for value, key in zip(own, names, strict=True):
            alike[key].append(value)
    moments = {key: Moments.of(others) for key, others in alike.items()}
    flat = {key for key, others in alike.items() if min(others) == max(others)}

    def norm(value: float, key: Hashable) -> float:
        if key in flat:
            return 0.0
        return (value - moments[key].mean) / (moments[key].deviation + epsilon)

    return [
        [norm(value, key) for value, key in zip(own, names, strict=True)]
        for own, names in zip(values, keys, strict=True)
    ]


class TurnReturnAdvantage(BaseModel):
    """A turn's discounted return among those of the siblings' turns with its number: an action
    answers for what came after it, and not for what came before."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["turn_returns"] = Field(
        default="turn_returns",
        description="Advantage of each turn by what was paid from it on, within the group.",
    )
    gamma: float = Field(
        default=1.0, gt=0, le=1, description="Discount of a reward for each turn before it."
    )
    epsilon: Fixed[float] = 1e-06  # added to the standard deviation before dividing by it

    spans_step: ClassVar[bool] = False
    leaves_flat_groups_out: ClassVar[bool] = False

    def of_turns(self, group: Sequence[TurnRewards]) -> list[list[float]]:
        """One advantage for each turn of each response."""
        values = [returns(each.rewards, self.gamma) for each in group]
        return normed(values, [range(len(own)) for own in values], self.epsilon)


class AnchorStateAdvantage(BaseModel):
    """GiGPO (arXiv 2505.10978, equations for the episode and the step relative advantage): beside
    the episode's reward a turn's return among those of all turns of the group before which the
    model read the very same. It tells something where states come back.

    States are compared within the group alone: in other episodes equal words may mean another
    thing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["anchor_states"] = Field(
        default="anchor_states",
        description="Advantage of each turn by the episode and by turns from the same state.",
    )
    gamma: float = Field(
        default=0.95, gt=0, le=1, description="Discount of a reward for each turn before it."
    )
    episode_weight: float = Field(
        default=1.0, ge=0, le=1e6, description="Weight of the episode's reward among its siblings'."
    )
    state_weight: float = Field(
        default=1.0,
        ge=0,
        le=1e6,
        description="Weight of a turn's return among those from its state.",
    )
    epsilon: Fixed[float] = 1e-06  # added to the standard deviation before dividing by it

    spans_step: ClassVar[bool] = False
    leaves_flat_groups_out: ClassVar[bool] = False

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        if not (self.episode_weight or self.state_weight):
            raise ValueError(
                "learner.advantage.episode_weight or state_weight must be > 0, got 0 for both:"
                " every advantage would be 0; raise one"
            )
        return self

    def of_turns(self, group: Sequence[TurnRewards]) -> list[list[float]]:
        """One advantage for each turn of each response."""
        rewards = [[each.reward] for each in group]
        by_episode = normed(rewards, [("",)] * len(group), self.epsilon)
        values = [returns(each.rewards, self.gamma) for each in group]
        by_state = normed(values, [each.states for each in group], self.epsilon)
        return [
            [self.episode_weight * whole + self.state_weight * turn for turn in turns]
            for (whole,), turns in zip(by_episode, by_state, strict=True)
        ]


Credit = (
    GrpoAdvantage  # by the group's mean and deviation
    | DrGrpoAdvantage  # by the group's mean
    | ReinforcePlusPlusAdvantage  # by the step's mean and deviation
    | GaeAdvantage  # by a critic
    | TurnReturnAdvantage  # each turn by what was paid from it on
    | AnchorStateAdvantage  # each turn by turns from the same state, and by the episode
)
CreditConfig = Annotated[Credit, Field(discriminator="kind")]


def turn_advantages(
    group: Group,
    rewards: Sequence[float | None],
    credit: Credit,
    moments: Moments | None = None,
) -> list[tuple[float, ...] | None]:
    """The advantages of each response, one for each of its turns (`Generated.sampled`): 0 for a
    turn in which nothing was sampled, None for a response without a verdict.

    `rewards`: as training sees them. `moments`: of all rewards of the step, where they count."""
    answers = [response.generated for response in group.responses]
    if not isinstance(credit, TurnReturnAdvantage | AnchorStateAdvantage):
        values = group_advantages(rewards, credit, moments)
        return [
            None if value is None else (value,) * len(generated.sampled)
            for generated, value in zip(answers, values, strict=True)
        ]
    judged = [
        (place, played(answers[place], reward))
        for place, reward in enumerate(rewards)
        if reward is not None
    ]
    found: list[tuple[float, ...] | None] = [None] * len(answers)
    by_turn = credit.of_turns([each for _, each in judged])
    for (place, _), of_turns in zip(judged, by_turn, strict=True):
        own = iter(of_turns)
        found[place] = tuple(next(own) if places else 0.0 for places in answers[place].sampled)
    return found


def token_mean(advantages: Sequence[float], sampled: Sequence[range]) -> float:
    """The mean advantage of a response's sampled tokens; where all turns have the same advantage,
    exactly that one."""
    first, num_tokens = advantages[0], sum(map(len, sampled))
    parts = zip(advantages, sampled, strict=True)
    return first + sum((own - first) * len(places) for own, places in parts) / num_tokens
