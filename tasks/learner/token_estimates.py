"""Advantages and returns of the tokens of a step, by a critic's values.

rows of all mini-batches + values ─▶ rewards of tokens ─▶ gae ─▶ returns
                                                            └──▶ whitened over the step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from tasks.learner.advantage import GaeAdvantage
from tasks.learner.divergence import ESTIMATORS
from tasks.learner.finite import LARGEST_PENALTY
from tasks.learner.gae import spread_of, token_advantages, token_rewards, whitened
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.micro_step import ScoredRow, lengths_of
from tasks.learner.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What values say of all rows of a step on this rank."""

    rows: tuple[ScoredRow, ...]  # with the advantages
    returns: tuple[Tensor, ...]  # of the tokens of each row: what the values shall become
    explained_variance: float  # share of the returns' variance that values explain, on all ranks


def estimates(
    rows: Sequence[ScoredRow], values: Sequence[Tensor], config: LearnerConfig, ranks: Ranks
) -> Estimates:
    """Advantages and returns by the values before the step's first update. Collective."""
    advantage = config.advantage
    assert isinstance(advantage, GaeAdvantage)
    advantages = [
        token_advantages(_rewards(row, config), value, lengths_of(row.batch), advantage)
        for row, value in zip(rows, values, strict=True)
    ]
    returns = [own + value for own, value in zip(advantages, values, strict=True)]
    # an advantage is what a value leaves of its return
    left, whole = spread_of(advantages, ranks), spread_of(returns, ranks)
    if advantage.whiten:
        advantages = [whitened(own, left) for own in advantages]
    return Estimates(
        rows=tuple(_with(row, own) for row, own in zip(rows, advantages, strict=True)),
        returns=tuple(returns),
        explained_variance=1.0 - left.variance / whole.variance if whole.variance else 0.0,
    )


def _rewards(row: ScoredRow, config: LearnerConfig) -> Tensor:
    """The reward of each token, less the KL penalty of the proximal policy where that is in it."""
    tokens, lengths = row.tokens, lengths_of(row.batch)
    if tokens.reference is None or config.kl_place != "reward":
        return token_rewards(tokens.reward, None, lengths)
    assert tokens.proximal is not None, "a scored row has it"
    divergence = ESTIMATORS[config.kl_estimator](tokens.proximal, tokens.reference)
    penalty = config.kl_coefficient * divergence.clamp(-LARGEST_PENALTY, LARGEST_PENALTY)
    return token_rewards(tokens.reward, penalty, lengths)


def _with(row: ScoredRow, advantages: Tensor) -> ScoredRow:
    return replace(row, tokens=replace(row.tokens, advantage=advantages))
