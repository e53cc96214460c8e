"""Slices of a flat buffer between gloo ranks, and the norm of what they sum up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learner_factories import run_processes

from tasks.learner import exchange
from tasks.learner.gradient_norm import squared_norm
from tasks.learner.sharding import Ranks

SLICE = 700  # elements; seven messages and no remainder, or two and one


def gradients(rank: int, world_size: int) -> torch.Tensor:
    return torch.randn(SLICE * world_size, generator=torch.Generator().manual_seed(rank))


def _meet(rank: int, world_size: int, piece: int, out: str) -> None:
    torch.set_num_threads(1)
    exchange._PIECE = piece
    ranks = Ranks(rank, world_size, torch.device("cpu"))
    ranks.join(f"file://{out}/rendezvous", 60.0)
    reduced = ranks.reduce_scatter(gradients(rank, world_size))
    values = torch.full((SLICE * world_size,), -1.0, dtype=torch.bfloat16)
    values.chunk(world_size)[rank].copy_(reduced)
    ranks.all_gather(values)
    torch.save((reduced, values), f"{out}/{rank}.pt")
    ranks.close()


@pytest.mark.parametrize(("world_size", "piece"), [(2, 100), (2, 300), (3, 300), (2, 1 << 22)])
def test_every_rank_gets_its_slice_of_the_sum_and_everybodys_values(
    tmp_path: Path, world_size: int, piece: int
) -> None:
    arguments = [(rank, world_size, piece, str(tmp_path)) for rank in range(world_size)]
    run_processes(_meet, arguments)
    total = sum(
        (gradients(rank, world_size).double() for rank in range(world_size)), torch.zeros(1)
    )
    met = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world_size)]
    together = torch.cat([reduced for reduced, _ in met])
    torch.testing.assert_close(together.double(), total, rtol=1e-6, atol=1e-6)
    for _, values in met:
        assert torch.equal(values, together.bfloat16())


def test_two_ranks_sums_are_the_bits_of_one_addition(tmp_path: Path) -> None:
    run_processes(_meet, [(rank, 2, 300, str(tmp_path)) for rank in range(2)])
    met = [torch.load(tmp_path / f"{rank}.pt")[0] for rank in range(2)]
    assert torch.equal(torch.cat(met), gradients(0, 2) + gradients(1, 2))


@pytest.mark.parametrize("size", [1, 1 << 20, (1 << 20) + 3])
def test_the_squared_norm_is_that_of_double_precision(size: int) -> None:
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(0))
    exact = float(gradient.double().square().sum())
    assert squared_norm(gradient) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("sick", [float("nan"), float("inf")])
def test_the_squared_norm_of_a_sick_gradient_is_not_finite(sick: float) -> None:
    gradient = torch.zeros((1 << 20) + 5)
    gradient[-1] = sick
    assert not squared_norm(gradient) < float("inf")


def test_the_squared_norm_of_huge_values_is_finite() -> None:
    assert squared_norm(torch.full((4,), 1e30)) == pytest.approx(4e60, rel=1e-6)
