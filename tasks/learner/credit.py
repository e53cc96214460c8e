"""Which tokens answer for what: a response as a whole (`advantage`), or each turn for itself
(`turn_advantage`). A kind of either is one line of the union below.

Leaves out what a critic makes of it, token by token (gae).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from artifacts.records import Group
from tasks.learner.advantage import (
    DrGrpoAdvantage,
    GaeAdvantage,
    GrpoAdvantage,
    Moments,
    ReinforcePlusPlusAdvantage,
    group_advantages,
)
from tasks.learner.turn_advantage import AnchorStateAdvantage, TurnReturnAdvantage, played

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
