"""Slices of a flat buffer between gloo ranks, and the norm of what they sum up."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from rank_processes import run_processes

from tasks.learner import ranks as ranks_module
from tasks.learner.optimizer import squared_norm
from tasks.learner.ranks import PeerLost, Ranks

SLICE = 700  # elements of a rank
PIECES = (100, 300, 1 << 22)  # of a message: seven of them, two and a rest, one
Met = dict[int, tuple[torch.Tensor, torch.Tensor]]  # by piece: the slice of the sum, all values


def gradients(rank: int, world_size: int) -> torch.Tensor:
    return torch.randn(SLICE * world_size, generator=torch.Generator().manual_seed(rank))


def _meet(rank: int, world_size: int, out: str) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(rank, world_size, torch.device("cpu"))
    ranks.join(f"file://{out}/rendezvous", 60.0)
    met = {}
    for ranks_module._PIECE in PIECES:
        reduced = ranks.reduce_scatter(gradients(rank, world_size))
        values = torch.full((SLICE * world_size,), -1.0, dtype=torch.bfloat16)
        values.chunk(world_size)[rank].copy_(reduced)
        ranks.all_gather(values)
        met[ranks_module._PIECE] = (reduced.clone(), values)
    torch.save(met, f"{out}/{rank}.pt")
    ranks.close()


@pytest.fixture(scope="module", params=[2, 3])
def met(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Met]:
    """What every rank of two or three has in the end."""
    out, world_size = tmp_path_factory.mktemp("ranks"), request.param
    run_processes(_meet, [(rank, world_size, str(out)) for rank in range(world_size)])
    return [torch.load(Path(out) / f"{rank}.pt") for rank in range(world_size)]


@pytest.mark.parametrize("piece", PIECES)
def test_every_rank_gets_its_slice_of_the_sum_and_everybodys_values(
    met: list[Met], piece: int
) -> None:
    everybodys = torch.stack([gradients(rank, len(met)) for rank in range(len(met))])
    together = torch.cat([found[piece][0] for found in met])
    torch.testing.assert_close(together, everybodys.sum(0), rtol=1e-6, atol=1e-6)
    for found in met:
        assert torch.equal(found[piece][1], together.bfloat16())


def test_the_sum_is_the_same_bits_whatever_the_messages(met: list[Met]) -> None:
    for found in met:
        assert len({tuple(found[piece][0].tolist()) for piece in PIECES}) == 1


def test_a_rank_adds_the_others_to_its_own_in_their_order(met: list[Met]) -> None:
    """So the sum of two ranks is the bits of one addition, and every update can be made again."""
    for rank, found in enumerate(met):
        slices = [gradients(peer, len(met)).chunk(len(met))[rank] for peer in range(len(met))]
        total = slices.pop(rank)
        for others in slices:
            total = total + others
        assert torch.equal(found[PIECES[0]][0], total)


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


ANSWER_S = 0.3  # here
STILL_S = 1.8  # how long a rank that hangs lives on


def _hang(rank: int, out: str) -> None:
    """Rank 1 joins, and comes to one collective more."""
    torch.set_num_threads(1)
    ranks_module.ANSWERS_WITHIN = timedelta(seconds=ANSWER_S)
    for what in ("sum", "most", "reduce_scatter", "all_gather"):
        ranks = Ranks(rank, 2, torch.device("cpu"))
        ranks.join(f"file://{out}/{what}", 60.0)
        with ranks.patient():
            time.sleep(2 * ANSWER_S * rank)  # as one whose shard takes longer to write
            assert ranks.sum([1.0]) == [2.0]
        if rank:
            time.sleep(STILL_S)
            continue
        given = {"sum": [1.0], "most": 1}.get(what, torch.ones(4))
        began_s = time.monotonic()
        with pytest.raises(PeerLost, match="rank 0 lost another rank"):
            getattr(ranks, what)(given)
        assert ANSWER_S / 2 < time.monotonic() - began_s < STILL_S / 2
        with pytest.raises(PeerLost):
            ranks.check()
        time.sleep(STILL_S - (time.monotonic() - began_s))


def test_a_rank_that_hangs_is_lost_when_its_time_to_answer_is_over(tmp_path: Path) -> None:
    """Of every collective, and not where ranks are patient."""
    assert timedelta(seconds=60) == ranks_module.ANSWERS_WITHIN
    run_processes(_hang, [(rank, str(tmp_path)) for rank in range(2)])
