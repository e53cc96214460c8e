"""Muon in float32 does what torch.optim.Muon does in bfloat16."""

from __future__ import annotations

import pytest
import torch

from tasks.tiny_models.warm_up import Muon, orthogonal


@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12)])
def test_singular_values_come_close_to_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(16, 16), (24, 8), (8, 24)])
def test_updates_are_those_of_torch(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    ours = torch.randn(shape)
    theirs = ours.clone()
    start = ours.clone()
    optimizers = (
        Muon([ours], lr=0.02, momentum=0.95),
        torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0),
    )
    for _ in range(5):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    difference = (ours - theirs).norm() / (ours - start).norm()
    assert difference < 0.02  # bfloat16


def test_a_parameter_that_is_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be matrices, got one of shape \[3\]"):
        Muon([torch.zeros(3)], lr=0.1, momentum=0.9)


def test_a_parameter_without_a_gradient_stays() -> None:
    parameter = torch.ones(2, 2)
    Muon([parameter], lr=0.1, momentum=0.9).step()
    assert torch.equal(parameter, torch.ones(2, 2))
