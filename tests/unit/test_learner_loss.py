"""Per-token losses by table."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.learner.divergence import k3
from tasks.learner.losses.ppo_clip import PpoClipLoss
from tasks.learner.losses.reinforce import ReinforceLoss
from tasks.learner.token_loss import TokenBatch


def token(behaviour: float, advantage: float) -> TokenBatch:
    return TokenBatch(
        behaviour=torch.tensor([behaviour]),
        advantage=torch.tensor([advantage]),
        weight=torch.ones(1),
        reference=None,
    )


def derivative(loss: PpoClipLoss | ReinforceLoss, logp: float, batch: TokenBatch) -> float:
    leaf = torch.tensor([logp], requires_grad=True)
    return float(torch.autograd.grad(loss.token_loss(leaf, batch).loss.sum(), leaf)[0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 1.0, -1.0, False),
        (1.25, 1.0, -1.25, False),
        (1.5, 1.0, -1.28, True),
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),
        (0.9, -1.0, 0.9, False),
        (3.0, -1.0, 3.0, False),
    ],
)
def test_ppo_clips_only_where_the_ratio_has_gone_too_far(
    ratio: float, advantage: float, loss: float, clipped: bool
) -> None:
    ppo = PpoClipLoss(clip_low=0.2, clip_high=0.28, old_policy="engine")
    result = ppo.token_loss(torch.tensor([-2.0 + math.log(ratio)]), token(-2.0, advantage))
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert bool(result.clipped) is clipped
    assert result.importance.item() == pytest.approx(ratio, rel=1e-5)
    assert not bool(result.truncated)
    assert (derivative(ppo, -2.0 + math.log(ratio), token(-2.0, advantage)) == 0) is clipped


@pytest.mark.parametrize(
    ("engine_over", "weight"),
    [(0.0, 1.0), (math.log(1.5), 1.5), (math.log(9.0), 2.0), (-1.0, math.exp(-1))],
)
def test_importance_weights_are_truncated_and_constant(engine_over: float, weight: float) -> None:
    batch = token(-2.0 - engine_over, 1.0)
    assert derivative(PpoClipLoss(), -2.0, batch) == pytest.approx(-weight, rel=1e-5)
    assert derivative(ReinforceLoss(), -2.0, batch) == pytest.approx(-weight, rel=1e-5)


def test_the_learners_own_ratio_is_one_and_never_clipped() -> None:
    result = PpoClipLoss().token_loss(torch.tensor([-2.0]), token(-9.0, 1.0))
    assert result.loss.item() == -2.0, "the weight, as it was truncated, times a ratio of 1"
    assert not bool(result.clipped)


@pytest.mark.parametrize("loss", [PpoClipLoss(), ReinforceLoss()])
def test_truncated_weights_are_told_whatever_the_loss(loss: PpoClipLoss | ReinforceLoss) -> None:
    for engine_over, truncated in ((0.0, False), (math.log(1.9), False), (math.log(2.1), True)):
        result = loss.token_loss(torch.tensor([-2.0]), token(-2.0 - engine_over, 1.0))
        assert bool(result.truncated) is truncated
        assert result.importance.item() == pytest.approx(math.exp(engine_over), rel=1e-5)
        assert not bool(result.clipped)


def test_k3_is_zero_for_equal_policies_and_positive_otherwise() -> None:
    logp = torch.tensor([-1.0, -1.0, -1.0])
    assert k3(logp, torch.tensor([-1.0, -1.5, -0.5])).tolist() == pytest.approx(
        [0.0, math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5]
    )
