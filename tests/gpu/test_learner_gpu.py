"""The learner on a CUDA device: flex_attention and NCCL take the places of the CPU's block walk and
gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learner_factories import make_model, random_groups

from artifacts.records import pack
from artifacts.weights import fingerprint
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.packing import pack_samples
from tasks.learner.samples import training_set
from tasks.learner.trainer import LearnerRank
from tasks.learner.tree_attention import TreePlan, is_ancestor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    return make_model(tmp_path / "model", head_dim=32)


WHOLE_RESPONSES = {
    "loss": {"kind": "gspo"},
    "sequence_mask": {"kind": "drift", "statistic": "k1", "bound": 2.0},
    "kl_coefficient": 0.1,
    "kl_place": "reward",
    "entropy_coefficient": 0.05,
}


@pytest.mark.parametrize("given", [{}, WHOLE_RESPONSES], ids=["default", "whole responses"])
def test_fp32_gradients_on_the_gpu_equal_those_of_the_cpu(
    model_path: str, given: dict[str, object]
) -> None:
    config = LearnerConfig.model_validate(given | {"compute": "fp32"})
    ranks = [LearnerRank(config, model_path, 0, 1, device) for device in ("cpu", "cuda")]
    reports = [rank.accumulate(pack(random_groups(7))) for rank in ranks]
    gradients = [rank._policy.parameters.gradients.cpu() for rank in ranks]
    assert reports[0].loss_sum == pytest.approx(reports[1].loss_sum, rel=1e-3, abs=1e-3)
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.9999


def test_bf16_gradients_on_the_gpu_point_where_fp32_gradients_do(model_path: str) -> None:
    gradients = []
    for compute, device in (("bf16", "cuda"), ("fp32", "cpu")):
        rank = LearnerRank(LearnerConfig(compute=compute), model_path, 0, 1, device)
        rank.accumulate(pack(random_groups(7)))
        gradients.append(rank._policy.parameters.gradients.cpu())
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.99


def test_an_update_and_an_export_work_on_the_gpu(model_path: str, tmp_path: Path) -> None:
    rank = LearnerRank(LearnerConfig(), model_path, 0, 1, "cuda")
    rank.join("unused for one rank", 10.0)
    rank.accumulate(pack(random_groups(7)))
    assert rank.update(1).applied
    assert rank.export_weights(1, str(tmp_path / "w.safetensors")) is not None
    rank.close()


def test_the_block_mask_is_the_ancestor_relation() -> None:
    data = training_set(random_groups(3), LearnerConfig().advantage, LearnerConfig().aggregation)
    batch = pack_samples(data.samples)
    ends = torch.tensor(batch.subtree_ends, device="cuda")
    depths = torch.tensor(batch.positions, device="cuda")
    nodes = torch.arange(ends.numel(), device="cuda")
    for window in (None, 4):
        mask = TreePlan(ends, depths).within(window).block_mask
        dense = mask.mask_mod(torch.tensor(0), torch.tensor(0), nodes[:, None], nodes[None, :])
        expected = is_ancestor(ends, nodes[:, None], nodes[None, :])
        if window is not None:
            expected &= depths[:, None] - depths[None, :] < window
        assert torch.equal(dense, expected)


def test_fingerprints_are_the_same_on_both_devices() -> None:
    tensor = torch.randn(321, 123)
    assert fingerprint(tensor) == fingerprint(tensor.cuda())
