"""LearnerRank: updates, checkpoints, exports, probes, one rank and two."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_factories import live_tensors, make_group, make_model, new_objects_alone, random_groups
from rank_processes import run_processes
from safetensors.torch import save_file

from artifacts.records import pack
from artifacts.store import StoreError
from artifacts.weights import fingerprints, read_weights
from research.benchmarks.naive_model import naive_logp, naive_model
from tasks.learner import shards
from tasks.learner.dealing import GroupPart, balance
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.packing import Sample
from tasks.learner.reports import AccumulateReport
from tasks.learner.samples import SequenceMean
from tasks.learner.trainer import LearnerRank

CONFIG = LearnerConfig(
    compute="fp32",
    aggregation=SequenceMean(),
    max_tokens_per_microbatch=64,
    optimizer=AdamWConfig(learning_rate=1e-2, warmup_steps=2, weight_decay=0.1, epsilon=1e-4),
)


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    return make_model(tmp_path / "model")


def learner(path: str, config: LearnerConfig = CONFIG) -> LearnerRank:
    return LearnerRank(config=config, model_path=path, rank=0, world_size=1)


def weights(rank: LearnerRank, path: Path) -> dict[str, torch.Tensor]:
    reference = rank.export_weights(1, str(path / "exported.safetensors"))
    assert reference is not None
    return dict(read_weights(reference.path))


def test_an_update_is_one_adamw_step_on_the_mean_loss(model_path: str) -> None:
    """Compared with torch's own AdamW on gradients of the same sums, divided and clipped the
    ordinary way."""
    rank = learner(model_path)
    report = rank.accumulate(pack(random_groups(7)))
    model = naive_model(model_path)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    flat = rank._policy.parameters
    for name, parameter in model.named_parameters():
        parameter.grad = flat.gradient(name).clone() / report.normaliser
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=0.5e-2, betas=(0.9, 0.95), eps=1e-4).step()
    update = rank.update(1)
    assert update.applied
    assert update.learning_rate == 0.5e-2
    assert update.grad_norm == pytest.approx(float(norm), rel=1e-5)
    assert update.loss == pytest.approx(report.loss_sum / report.normaliser)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(flat.view(name), parameter.detach(), rtol=1e-5, atol=1e-6)


def test_equal_inputs_give_bitwise_equal_weights(model_path: str) -> None:
    ranks = [learner(model_path) for _ in range(2)]
    for rank in ranks:
        rank.accumulate(pack(random_groups(7)))
        rank.update(1)
    assert torch.equal(ranks[0]._policy.parameters.values, ranks[1]._policy.parameters.values)


def test_discarded_gradients_leave_no_trace(model_path: str) -> None:
    first, second = learner(model_path), learner(model_path)
    first.accumulate(pack(random_groups(8)))
    first.discard()
    for rank in (first, second):
        rank.accumulate(pack(random_groups(7)))
        rank.update(1)
    assert torch.equal(first._policy.parameters.values, second._policy.parameters.values)


def test_an_update_of_nothing_changes_nothing(model_path: str) -> None:
    rank = learner(model_path)
    before = rank.fingerprints()
    report = rank.accumulate(pack((make_group((1, 2), [(3,)], [None]),)))
    update = rank.update(1)
    assert (report.normaliser, report.num_responses_excluded) == (0.0, 1)
    assert not update.applied
    assert rank.fingerprints() == before


def test_responses_of_flat_groups_are_counted_but_not_computed(model_path: str) -> None:
    report = learner(model_path).accumulate(pack((make_group((1, 2), [(3,), (4, 5)], [1.0, 1.0]),)))
    assert (report.num_groups_flat, report.num_responses, report.num_responses_skipped) == (1, 2, 2)
    assert (report.num_tokens, report.num_tokens_computed, report.normaliser) == (3, 0, 2.0)


def test_a_kl_term_reports_the_distance_from_the_start_and_pulls_back(model_path: str) -> None:
    rank = learner(model_path, CONFIG.model_copy(update={"kl_coefficient": 0.1}))
    first = rank.accumulate(pack(random_groups(7)))
    rank.update(1)
    second = rank.accumulate(pack(random_groups(7)))
    assert first.reference_kl_sum == pytest.approx(0.0, abs=1e-4)
    assert second.reference_kl_sum > 1e-3
    assert first.num_responses_skipped == 0


def held_bytes(path: str, config: LearnerConfig) -> tuple[int, LearnerRank]:
    """Bytes of all tensors that a new learner keeps, and the learner.

    Tensors that were there before are not looked into: those of a compiler have no storage.
    """
    with new_objects_alone():
        rank = learner(path, config)
        added = [tensor.untyped_storage() for tensor in live_tensors()]
        return sum({store.data_ptr(): store.nbytes() for store in added}.values()), rank


@pytest.mark.parametrize(("compute", "bytes_each"), [("bf16", 2), ("fp32", 4)])
def test_a_reference_holds_its_weights_once_in_the_compute_dtype_and_nothing_else(
    model_path: str,
    compute: str,
    bytes_each: int,
) -> None:
    plain = CONFIG.model_copy(update={"compute": compute})
    without, alone = held_bytes(model_path, plain)
    held, rank = held_bytes(model_path, plain.model_copy(update={"kl_coefficient": 0.1}))
    reference = rank._micro_step._reference
    assert reference is not None
    assert (
        reference.parameters.values.nbytes == bytes_each * alone._policy.parameters.values.numel()
    )
    buffers = sum(buffer.nbytes for buffer in reference.backbone.buffers())
    assert held - without == reference.parameters.values.nbytes + buffers


def test_a_checkpoint_restores_bit_by_bit(model_path: str, tmp_path: Path) -> None:
    original = learner(model_path)
    original.accumulate(pack(random_groups(7)))
    original.update(1)
    original.save_checkpoint(str(tmp_path / "step-1"), 1)
    restored = learner(model_path)
    restored.accumulate(pack(random_groups(9)))
    assert restored.load_checkpoint(str(tmp_path / "step-1")) == 1
    for rank in (original, restored):
        rank.accumulate(pack(random_groups(8)))
        rank.update(2)
    assert torch.equal(original._policy.parameters.values, restored._policy.parameters.values)


def test_a_full_disk_under_a_checkpoint_is_named(
    model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards, "_write", full)
    with pytest.raises(StoreError, match=r"disk full: .*/shard-00000-of-00001.safetensors needs"):
        learner(model_path).save_checkpoint(str(tmp_path / "step-1"), 1)


def test_an_incomplete_checkpoint_is_refused(model_path: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every rank's shard"):
        learner(model_path).load_checkpoint(str(tmp_path))


def test_a_checkpoint_of_another_model_is_refused(model_path: str, tmp_path: Path) -> None:
    learner(make_model(tmp_path / "untied", tied=False)).save_checkpoint(str(tmp_path / "other"), 3)
    with pytest.raises(ValueError, match="same model"):
        learner(model_path).load_checkpoint(str(tmp_path / "other"))


def test_a_checkpoint_in_another_form_is_refused_with_a_cure(
    model_path: str, tmp_path: Path
) -> None:
    """One slice of a flat buffer, with its layout instead of shapes and starts."""
    masters = {"masters": torch.zeros(64)}
    header = json.dumps({"step": 3, "num_updates": 3, "start": 0, "layout": []})
    file = tmp_path / "shard-00000-of-00001.safetensors"
    save_file(masters, file, metadata={"header": header})
    with pytest.raises(ValueError, match=r"another version of Rollflow .* resume the run with"):
        learner(model_path).load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("place", [3, 40, -5000])
def test_a_damaged_shard_without_digest_is_named(
    model_path: str, tmp_path: Path, place: int
) -> None:
    """Its length of the header, the header, and an end that is cut off."""
    learner(model_path).save_checkpoint(str(tmp_path), 1)
    (shard,) = tmp_path.glob("shard-*")
    data = shard.read_bytes()
    shard.write_bytes(data[:place] + b"\xff" + data[place + 1 :] if place > 0 else data[:place])
    with pytest.raises(ValueError, match=rf"must be whole, .*{shard.name} is not .*; delete its"):
        learner(model_path).load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("compute", ["bf16", "fp32"])
def test_exported_weights_load_in_transformers_and_match_the_fingerprints(
    model_path: str, tmp_path: Path, compute: str
) -> None:
    rank = learner(model_path, CONFIG.model_copy(update={"compute": compute}))
    exported = weights(rank, tmp_path)
    names = {name for name, _ in naive_model(model_path).named_parameters()}
    assert set(exported) == names
    assert rank.fingerprints() == fingerprints(tmp_path / "exported.safetensors")


def test_probes_are_ordinary_log_probabilities(model_path: str) -> None:
    probes = [(1, 2, 3, 4), (1, 2, 9), (5,)]
    got = learner(model_path).probe(probes)
    assert [len(values) for values in got] == [3, 2, 0]
    for ids, values in zip(probes[:2], got, strict=False):
        sample = Sample(
            prompt=np.array(ids[:1]),
            response=np.array(ids[1:]),
            sampled=(range(len(ids) - 1),),
            sampling_logp=np.empty(0, dtype=np.float32),
            advantages=(0.0,),
            reward=0.0,
            weight=0.0,
        )
        with torch.no_grad():
            expected, _ = naive_logp(naive_model(model_path), sample)
        assert values == pytest.approx(expected.tolist(), rel=1e-4)


def test_bf16_gradients_point_where_fp32_gradients_do(model_path: str) -> None:
    gradients = []
    for compute in ("bf16", "fp32"):
        rank = learner(model_path, CONFIG.model_copy(update={"compute": compute}))
        rank.accumulate(pack(random_groups(7)))
        gradients.append(rank._policy.parameters.gradients)
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.99


def test_reports_add_up() -> None:
    total = AccumulateReport(
        num_tokens=1, importance_max=2.0, busy=((0.0, 1.0),)
    ) + AccumulateReport(num_tokens=2, importance_max=1.0, busy=((1.0, 3.0),))
    assert (total.num_tokens, total.importance_max, total.busy_s) == (3, 2.0, 3.0)


def test_a_missing_model_and_foreign_tokens_are_named(model_path: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent"):
        learner(str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="vocabulary of 61"):
        learner(model_path).accumulate(pack((make_group((1, 99), [(2,), (3,)], [0.0, 1.0]),)))


def test_ranks_must_join_before_they_update(model_path: str) -> None:
    rank = LearnerRank(config=CONFIG, model_path=model_path, rank=0, world_size=2)
    with pytest.raises(ValueError, match="join"):
        rank.update(1)


def _train(rank: int, path: str, shares: list[list[tuple[GroupPart, ...]]], out: str) -> None:
    torch.set_num_threads(1)
    learner = LearnerRank(config=CONFIG, model_path=path, rank=rank, world_size=2)
    learner.join(f"file://{out}/rendezvous", 60.0)
    for step in (1, 2):
        for share in shares[rank]:
            learner.accumulate(pack(share))
        learner.update(step)
    learner.save_checkpoint(f"{out}/checkpoint", 2)
    learner.export_weights(2, f"{out}/two.safetensors")
    learner.close()


def test_two_ranks_make_the_update_of_one_and_share_its_checkpoint(
    model_path: str, tmp_path: Path
) -> None:
    """Two gloo processes; one gets its share in two calls. The single rank then reads the two
    shards."""
    groups = random_groups(7, num_groups=6)
    one, other = balance(groups, 2)
    shares = [[one], [other[:1], other[1:]]]
    run_processes(_train, [(rank, model_path, shares, str(tmp_path)) for rank in range(2)])

    alone = learner(model_path)
    for step in (1, 2):
        alone.accumulate(pack(groups))
        alone.update(step)
    together = learner(model_path)
    assert together.load_checkpoint(str(tmp_path / "checkpoint")) == 2
    size = alone._policy.parameters.num_elements
    torch.testing.assert_close(
        together._policy.parameters.values[:size],
        alone._policy.parameters.values[:size],
        rtol=1e-4,
        atol=1e-5,
    )
    assert together.fingerprints() == fingerprints(tmp_path / "two.safetensors")
