"""Rows on a device: what is prepared beside the row before, what is never read back; and how much
of a model and of a checkpoint is in memory at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_factories import ALONE, make_model, one_row, random_groups, with_episodes
from safetensors import safe_open
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from artifacts.records import pack, unpack
from research.benchmarks.learner_host_time import NoModel
from tasks.learner import rows as rows_module
from tasks.learner import shards, trainer
from tasks.learner.dealing import GroupPart
from tasks.learner.head import LossGradient, head_pass
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.micro_step import MicroStep
from tasks.learner.packing import PackedBatch, Sample, micro_batches
from tasks.learner.parameters import ReplicatedParameters
from tasks.learner.policy import load_decoder
from tasks.learner.row_report import total
from tasks.learner.rows import moved, prepared, row_of
from tasks.learner.samples import TrainingSet, training_set
from tasks.learner.trainer import LearnerRank
from tasks.learner.tree_attention import TreePlan

CPU, CONFIG = torch.device("cpu"), LearnerConfig()
DEADLINE_S = 30.0
WAITS = {  # operators that need a number on the host, for which a GPU is waited for
    "aten._local_scalar_dense", "aten.nonzero", "aten._unique2", "aten.equal", "aten.is_nonzero",
}  # fmt: skip


class NothingIsRead(TorchDispatchMode):
    """Fails at an operator that would wait for a GPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:  # Any: torch's operators and their arguments
        name = str(func.name()).replace("::", ".").partition("_out")[0]
        assert name not in WAITS, f"{name} is read on the host"
        return func(*args, **(kwargs or {}))


def samples(seed: int = 3) -> tuple[Sample, ...]:
    groups = with_episodes(random_groups(seed), seed)
    return training_set(groups, CONFIG.advantage, CONFIG.aggregation).samples


def test_rows_come_in_their_order_one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = micro_batches(samples(), 30)
    made: list[int] = []

    def note(batch: PackedBatch, device: torch.device) -> Any:
        made.append(len(batch.samples))
        return row_of(batch, device)

    monkeypatch.setattr(rows_module, "row_of", note)
    used = 0
    for row, parts in zip(prepared(dealt, CPU), dealt, strict=True):
        used += 1
        assert row.batch.samples == tuple(each.sample for each in parts)
        assert len(made) <= used + 1, "memory holds two rows at once"
    assert used == len(dealt) > 2


def test_what_makes_a_row_fail_is_raised_where_the_row_is_taken() -> None:
    dealt = [*micro_batches(samples(), 30), []]
    with pytest.raises(ValueError, match="zero-size array"):
        list(prepared(dealt, CPU))


@given(st.integers(0, 200))
def test_a_training_set_is_the_same_in_another_process(seed: int) -> None:
    groups = with_episodes(random_groups(seed), seed)
    whole = CONFIG.training_set(groups)
    found: TrainingSet = unpack(pack(whole))
    assert found == whole
    assert {each.response.dtype for each in found.samples} <= {np.dtype(np.int64)}
    assert {each.sampling_logp.dtype for each in found.samples} <= {np.dtype(np.float32)}
    alone = CONFIG.training_set([GroupPart(group=group, places=(0,)) for group in groups])
    assert all(each in whole.samples for each in alone.samples)


def test_arrays_are_the_same_after_the_copy() -> None:
    arrays = {
        "ids": np.arange(7, dtype=np.int64),
        "nothing": np.empty(0, dtype=np.int64),
        "values": np.linspace(0, 1, 5, dtype=np.float32),
    }
    found = moved(arrays, CPU)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    assert [tensor.dtype for tensor in found.values()] == [torch.int64] * 2 + [torch.float32]


def test_loss_head_and_statistics_of_a_row_wait_for_no_device() -> None:
    row = one_row(samples())
    step = MicroStep(CONFIG.objective, 1.0, NoModel(CPU), None)  # type: ignore[arg-type]
    hidden, weight = torch.randn(len(row.nodes), 8), torch.randn(row.largest_id + 1, 8)
    nothing = LossGradient(by_logp=lambda indices, logp: torch.ones_like(logp))
    with NothingIsRead():
        pending = [step.run(row), step.run(row)]
        head_pass(hidden, weight, row.predictions, 1.0, nothing, torch.zeros_like(weight))
        TreePlan(row.subtree_ends, row.positions, depth=row.depth).within(4).block_mask  # noqa: B018
    both, one = total(pending), total(pending[:1])
    assert both.num_tokens_scored == 2 * one.num_tokens_scored > 0
    assert both.importance_sum == 2 * one.importance_sum


class Allocations(TorchDispatchMode):
    """Counts the bytes of new tensors."""

    num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:  # Any: as above
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            given = [arg for arg in args if isinstance(arg, torch.Tensor)]
            of_others = {arg.untyped_storage().data_ptr() for arg in given}
            if made.untyped_storage().data_ptr() not in of_others:
                self.num_bytes += made.nbytes
        return made


def test_a_model_comes_to_its_device_without_a_second_copy_there(tmp_path: Path) -> None:
    """Its weights, masters and gradients are all that is allocated."""
    model = load_decoder(make_model(tmp_path), CPU)
    with Allocations() as allocations:
        held = ReplicatedParameters(model, torch.bfloat16, ALONE)
    assert allocations.num_bytes == (2 + 4 + 4) * held.values.numel()


def test_a_shard_is_the_file_that_the_library_writes(tmp_path: Path) -> None:
    rank = LearnerRank(LearnerConfig(), make_model(tmp_path / "model"), 0, 1)
    rank.accumulate(pack(random_groups(7)))
    rank.update(1)
    rank.save_checkpoint(str(tmp_path), 1)
    (ours,) = tmp_path.glob("shard-*")
    with safe_open(ours, framework="pt") as file:
        tensors, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(tensors, tmp_path / "theirs", metadata=metadata)
    assert ours.read_bytes() == (tmp_path / "theirs").read_bytes()
    assert json.loads(metadata["header"])["step"] == 1
    assert not [*tmp_path.glob(".shard*")]


@pytest.fixture
def held_save(monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Events: a shard's writing has begun, and it may end."""
    begun, may_end = Event(), Event()
    write: Callable[..., None] = shards.save_shard

    def held(*args: Any) -> None:
        begun.set()
        assert may_end.wait(DEADLINE_S)
        write(*args)

    monkeypatch.setattr(trainer, "save_shard", held)
    return begun, may_end


def test_rows_are_trained_beside_a_checkpoint_and_the_update_waits_for_it(
    tmp_path: Path, held_save: tuple[Event, Event]
) -> None:
    begun, may_end = held_save
    model = make_model(tmp_path / "model")
    rank, alone = (LearnerRank(LearnerConfig(), model, 0, 1) for _ in range(2))
    for each in (rank, alone):
        each.accumulate(pack(random_groups(7)))
        each.update(1)
    saving = rank.begin_checkpoint(str(tmp_path / "beside"), 1)
    assert begun.wait(DEADLINE_S)
    for each in (rank, alone):
        each.accumulate(pack(random_groups(8)))
    updating = Thread(target=rank.update, args=(2,))
    updating.start()
    updating.join(0.2)
    assert updating.is_alive(), "the update must not change what is being written"
    may_end.set()
    updating.join(DEADLINE_S)
    saving.result()
    alone.load_checkpoint(str(tmp_path / "beside"))
    alone.accumulate(pack(random_groups(8)))
    alone.update(2)
    assert alone.fingerprints() == rank.fingerprints(), "the shard is of step 1"


def test_a_checkpoint_that_fails_is_told_to_who_began_it_and_the_update_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "taken").write_text("no directory")
    rank = LearnerRank(LearnerConfig(), make_model(tmp_path / "model"), 0, 1)
    saving = rank.begin_checkpoint(str(tmp_path / "taken"), 1)
    rank.accumulate(pack(random_groups(7)))
    assert rank.update(1).applied
    with pytest.raises(OSError, match="taken"):
        saving.result()
