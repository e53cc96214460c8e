"""Advantages of tokens, from their rewards and a critic's values (generalised advantage estimation,
Schulman et al. 2016, arXiv 1506.02438).

    delta_t = r_t + gamma v_(t+1) - v_t,   v = 0 after the last token
    A_t     = delta_t + gamma lambda A_(t+1)          return_t = A_t + v_t

t counts sampled tokens only: an observation between two of them adds no discount. v_t is the value
of everything before token t, so the last token of a turn bootstraps from the value after the
observation that follows it. Leaves out the computation of values (`critic`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tasks.learner.advantage import GaeAdvantage
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.log_ratios import ESTIMATORS, LARGEST_PENALTY
from tasks.learner.micro_step import ScoredRow
from tasks.learner.ranks import Ranks
from tasks.learner.token_loss import Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and variance of a quantity over all ranks; both are zero for no values."""

    count: float
    mean: float
    variance: float  # of a sample: divided by count - 1


def token_rewards(rewards: Tensor, penalty: Tensor | None, lengths: Lengths) -> Tensor:
    """(tokens,): the reward of each response on its last token, less each token's own penalty.
    `rewards` repeats a response's reward on all of its tokens."""
    is_last = torch.zeros_like(rewards)
    ends = torch.tensor(lengths, device=rewards.device).cumsum(0) - 1
    is_last[ends] = 1.0
    given = rewards * is_last
    return given if penalty is None else given - penalty


def token_advantages(
    rewards: Tensor, values: Tensor, lengths: Lengths, advantage: GaeAdvantage
) -> Tensor:
    """(tokens,): the advantages before whitening, computed in fp64, response by response."""
    found: list[float] = []
    given, valued = rewards.double().tolist(), values.double().tolist()
    end = len(given)
    for length in reversed(lengths):
        later, following = 0.0, 0.0  # advantage and value of the token after
        for place in reversed(range(end - length, end)):
            delta = given[place] + advantage.gamma * following - valued[place]
            later = delta + advantage.gamma * advantage.trace_decay * later
            following = valued[place]
            found.append(later)
        end -= length
    return torch.tensor(found[::-1], dtype=torch.float32, device=rewards.device)


def spread_of(tensors: Sequence[Tensor], ranks: Ranks) -> Spread:
    """Mean and variance over all elements of these tensors on all ranks. Collective."""
    own = [tensor.double() for tensor in tensors]
    count, total = ranks.sum(
        [float(sum(tensor.numel() for tensor in own)), math.fsum(float(t.sum()) for t in own)]
    )
    mean = total / count if count else 0.0
    squares = math.fsum(float((tensor - mean).square().sum()) for tensor in own)
    (total_squares,) = ranks.sum([squares])
    return Spread(count=count, mean=mean, variance=total_squares / max(1.0, count - 1))


def whitened(values: Tensor, spread: Spread) -> Tensor:
    """(values - mean) / deviation; unchanged where there are fewer than two values."""
    if spread.count < 2:
        return values
    return (values - spread.mean) / (math.sqrt(spread.variance) + 1e-8)


def estimates(
    rows: Sequence[ScoredRow], config: LearnerConfig, ranks: Ranks
) -> tuple[list[ScoredRow], float]:
    """Returns all of this rank's rows in a step with the advantages and returns that follow from
    the critic's values, and the share of the returns' variance that the values explain, on all
    ranks. Called before the step's first update. Collective."""
    advantage = config.advantage
    assert isinstance(advantage, GaeAdvantage)
    advantages: list[Tensor] = []
    returns: list[Tensor] = []
    for row in rows:
        assert row.values is not None, "a critic has scored it"
        rewards = _rewards(row, config)
        advantages.append(token_advantages(rewards, row.values, row.row.lengths, advantage))
        returns.append(advantages[-1] + row.values)
    # an advantage is what a value leaves of its return
    left, whole = spread_of(advantages, ranks), spread_of(returns, ranks)
    if advantage.whiten:
        advantages = [whitened(own, left) for own in advantages]
    estimated = [
        replace(row, tokens=replace(row.tokens, advantage=own), returns=due)
        for row, own, due in zip(rows, advantages, returns, strict=True)
    ]
    return estimated, 1.0 - left.variance / whole.variance if whole.variance else 0.0


def _rewards(row: ScoredRow, config: LearnerConfig) -> Tensor:
    """The reward of each token, less the proximal policy's KL penalty where kl_place is reward."""
    tokens, lengths = row.tokens, row.row.lengths
    if tokens.reference is None or config.kl_place != "reward":
        return token_rewards(tokens.reward, None, lengths)
    assert tokens.proximal is not None, "a scored row has it"
    divergence = ESTIMATORS[config.kl_estimator](tokens.proximal, tokens.reference)
    penalty = config.kl_coefficient * divergence.clamp(-LARGEST_PENALTY, LARGEST_PENALTY)
    return token_rewards(tokens.reward, penalty, lengths)
