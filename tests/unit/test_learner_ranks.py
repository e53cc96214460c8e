"""Learner ranks as a group: entered again after a run that left no group, and broken for good when
one of them dies."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_processes import exit_codes

from tasks.learner.ranks import PeerLost, Ranks


def _rank(rank: int, out: str) -> None:
    """Rank 1 dies where rank 0 waits for it; what rank 0 met on the way goes into a file."""
    before = Ranks(rank, 2, torch.device("cpu"))  # never closed: its run was killed
    before.join(f"file://{out}/first", 60.0)
    before.sum([1.0])  # or the peer may still be entering when this one leaves
    ranks = Ranks(rank, 2, torch.device("cpu"))
    ranks.join(f"file://{out}/second", 60.0)
    total = ranks.sum([float(rank + 1)])
    if rank == 1:
        os._exit(9)
    met = {
        "total": total,
        "reduced": _failure(ranks, "reduce"),
        "checked": _failure(ranks, "check"),
    }
    ranks.close()
    (Path(out) / "met.json").write_text(json.dumps(met))


def _failure(ranks: Ranks, what: str) -> list[str]:
    """The type and the words of what a call raises."""
    try:
        if what == "reduce":
            ranks.reduce_scatter(torch.ones(1 << 20))
        else:
            ranks.check()
    except RuntimeError as error:
        return [type(error).__name__, str(error)]
    return []


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    out = tmp_path_factory.mktemp("ranks")
    exit_codes(_rank, [(rank, str(out)) for rank in range(2)])
    found: dict[str, list[object]] = json.loads((out / "met.json").read_text())
    return found


def test_a_process_enters_a_group_again_that_never_left_the_one_before(
    met: dict[str, list[object]],
) -> None:
    assert met["total"] == [3.0]


def test_a_rank_whose_peer_dies_in_a_collective_says_that_it_lost_it(
    met: dict[str, list[object]],
) -> None:
    assert met["reduced"][0] == "PeerLost"
    assert "rank 0 lost another rank during reduce-scatter" in str(met["reduced"][1])


def test_the_rank_remembers_that_its_group_is_broken(met: dict[str, list[object]]) -> None:
    assert met["checked"] == met["reduced"]


def test_a_lost_peer_is_told_to_the_flow_as_what_it_is() -> None:
    told = pickle.loads(pickle.dumps(PeerLost("rank 0 lost another rank")))
    assert (type(told), str(told)) == (PeerLost, "rank 0 lost another rank")


def test_one_rank_alone_has_nobody_to_lose() -> None:
    ranks = Ranks(0, 1, torch.device("cpu"))
    ranks.join("unused for one rank", 1.0)
    assert ranks.sum([2.0]) == [2.0]
    ranks.check()


def test_a_rank_that_was_made_and_never_joined_is_of_no_use() -> None:
    """The recovery that made it broke off; the next one must make it again."""
    with pytest.raises(PeerLost, match="rank 1 of 2 is in no group"):
        Ranks(1, 2, torch.device("cpu")).check()


def on_a_gpu(
    patch: pytest.MonkeyPatch,
    told: list[str],
    fault: RuntimeError | None = None,
) -> Ranks:
    """Rank 0 of two, as if its device were a GPU, whose queue fails in this way."""

    def synchronise(device: torch.device) -> None:
        told.append("synchronised")
        if fault is not None:
            raise fault

    patch.setattr(torch.cuda, "synchronize", synchronise)
    return Ranks(0, 2, torch.device("cuda"))


def test_a_collective_on_a_gpu_begins_and_ends_with_an_empty_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    with on_a_gpu(monkeypatch, told)._together("sum"):
        told.append("reduced")
    assert told == ["synchronised", "reduced", "synchronised"]


def test_what_failed_on_the_rank_itself_is_not_blamed_on_its_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = on_a_gpu(monkeypatch, [], fault=RuntimeError("device-side assert"))
    with pytest.raises(RuntimeError, match="device-side assert") as before, ranks._together("sum"):
        pass
    assert not isinstance(before.value, PeerLost)
    assert ranks._lost is None


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (dist.DistBackendError("NCCL: remote process exited"), PeerLost),
        (torch.AcceleratorError("illegal memory access"), torch.AcceleratorError),
        (torch.OutOfMemoryError("out of memory"), torch.OutOfMemoryError),
        (RuntimeError("shapes differ"), RuntimeError),
    ],
)
def test_in_a_collective_on_a_gpu_only_what_the_backend_raises_is_a_lost_peer(
    monkeypatch: pytest.MonkeyPatch, raised: RuntimeError, expected: type[RuntimeError]
) -> None:
    ranks = on_a_gpu(monkeypatch, [])
    with pytest.raises(RuntimeError) as met, ranks._together("sum"):
        raise raised
    assert type(met.value) is expected
