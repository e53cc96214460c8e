"""Credit assignment: an advantage for the response as a whole (`advantage`), or one for each of its
turns. Each kind is one line of the union `Credit`. Pure.

    return of a turn        G_k = r_k + gamma G_(k+1), r_k: what the environment paid
    norm(x in X)            (x - mean X) / (deviation X + epsilon); 0 where all are equal

    turn_returns            A_k = norm(G_k in the returns of all siblings' turns k)
    anchor_states           A_k = w_episode norm(R in the rewards of all siblings)
                                + w_state norm(G_k in the returns of all turns that read the same)

Leaves out the advantages of single tokens by a critic (`gae`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.episodes import observations_of
from artifacts.fixed_fields import Fixed
from artifacts.records import Generated, Group
from tasks.learner.advantage import (
    CustomAdvantage,
    DrGrpoAdvantage,
    GaeAdvantage,
    GrpoAdvantage,
    Moments,
    ReinforcePlusPlusAdvantage,
    group_advantages,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRewards:
    """A response's rewards and observations, turn by turn. A response that is no episode is one
    turn; turns without sampled tokens are left out."""

    reward: float  # of all of it, as training sees it
    rewards: tuple[float, ...]  # paid for each turn; they sum to `reward`
    states: tuple[str, ...]  # what the model read before each


def played(generated: Generated, reward: float) -> TurnRewards:
    """The turns of a response and what was paid for each. The difference between `reward` and the
    sum that the environment paid (a punishment, another judge's verdict) goes to the last turn."""
    if generated.episode is None:
        return TurnRewards(reward=reward, rewards=(reward,), states=("",))
    turns = generated.episode.turns
    seen = zip(turns, observations_of(turns), strict=True)
    paid = [turn.reward or 0.0 for turn in turns if turn.num_sampled]
    if paid:
        paid[-1] += reward - math.fsum(paid)
    states = tuple(observation.identity for turn, observation in seen if turn.num_sampled)
    return TurnRewards(reward=reward, rewards=tuple(paid), states=states)


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """The discounted return from each turn on: G_k = r_k + gamma G_(k+1)."""
    found: list[float] = []
    later = 0.0
    for reward in reversed(rewards):
        later = reward + gamma * later
        found.append(later)
    return found[::-1]


def normed(
    values: Sequence[Sequence[float]], keys: Sequence[Sequence[Hashable]], epsilon: float
) -> list[list[float]]:
    """Normalise each value among all values of the group with the same key; 0 where these are equal
    or the value is the only one. `values` and `keys`: by response, then by turn."""
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


class TurnReturnAdvantage(FrozenConfig):
    """Compares a turn's discounted return with those of the siblings' turns of the same number: an
    action is credited with what came after it, and not with what came before."""

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
        """Returns one advantage for each turn of each response."""
        values = [returns(each.rewards, self.gamma) for each in group]
        return normed(values, [range(len(own)) for own in values], self.epsilon)


class AnchorStateAdvantage(FrozenConfig):
    """GiGPO (arXiv 2505.10978, equations for the episode and the step relative advantage): the
    episode's advantage, plus that of a turn's return among all turns of the group before which the
    model read exactly the same observation. The second term helps where states recur. In other
    groups the same words may mean something else."""

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
        """Returns one advantage for each turn of each response."""
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
    | CustomAdvantage  # by a class of the user's, within the group
)
CreditConfig = Annotated[Credit, Field(discriminator="kind")]


def turn_advantages(
    group: Group,
    rewards: Sequence[float | None],
    credit: Credit,
    moments: Moments | None = None,
) -> list[tuple[float, ...] | None]:
    """The advantages of each response, one for each of its turns (`Generated.sampled`): 0 for a
    turn without sampled tokens, None for a response without a verdict. `rewards`: after overlong
    shaping. `moments`: of all rewards of the step, for advantages that need them."""
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
    """The mean advantage over a response's sampled tokens; of equal ones, exactly that."""
    first, num_tokens = advantages[0], sum(map(len, sampled))
    parts = zip(advantages, sampled, strict=True)
    return first + sum((own - first) * len(places) for own, places in parts) / num_tokens
