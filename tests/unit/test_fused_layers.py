"""Layers whose norms, rotary embeddings and gated products are compiled: no break in their graphs,
the same gradients, and nothing left to compile after the warm-up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo
from learner_factories import ALONE, VOCABULARY, random_groups, run_rows
from torch._dynamo.utils import counters

from research.benchmarks.tiny_architectures import ARCHITECTURES, save_tiny
from tasks.learner.advantage import GrpoAdvantage
from tasks.learner.fused_layers import ROTARY, fuse_layers, layers_of
from tasks.learner.losses.weighted import ReinforceLoss
from tasks.learner.micro_step import MicroStep
from tasks.learner.objective import Objective
from tasks.learner.policy import PolicyModel, load_policy
from tasks.learner.samples import SequenceMean, training_set

BACKEND = "aot_eager"  # traces forward and backward as a GPU's compiler does, and runs them as ever
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # which dynamo looks at
REFUSED = {"gemma2", "phi", "gpt_oss"}


@pytest.fixture(autouse=True)
def transformers_as_it_was() -> Iterator[None]:
    """Rotary embeddings are compiled for the whole process."""
    yield
    torch._dynamo.reset()
    models = [code for name, code in sys.modules.items() if ".modeling_" in name]
    for code in models:
        rotary = getattr(code, ROTARY, None)
        original = getattr(rotary, "_torchdynamo_orig_callable", None)
        if original is not None:
            setattr(code, ROTARY, original)


def trained(policy: PolicyModel, rows: int) -> tuple[float, torch.Tensor]:
    """The loss and the gradients of a few groups in rows of so many tokens."""
    samples = training_set(random_groups(3), GrpoAdvantage(), SequenceMean()).samples
    step = MicroStep(Objective(loss=ReinforceLoss()), 0.8, policy, None)
    loss = run_rows(step, samples, rows).loss_sum
    return loss, policy.parameters.gradients.clone()  # type: ignore[attr-defined]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma", "gemma3_text"])
def test_compiled_layers_have_the_gradients_of_the_layers(
    tmp_path: Path, name: str, recompute: bool
) -> None:
    path = str(save_tiny(name, tmp_path, VOCABULARY))
    loss, expected = trained(load_policy(path, "fp32", ALONE, "replicated", recompute), 60)
    policy = load_policy(path, "fp32", ALONE, "replicated", recompute)
    assert fuse_layers(policy.model, BACKEND) >= 3 * len([*layers_of(policy.model)])
    found, gradients = trained(policy, 60)
    assert found == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    assert not counters["graph_break"]


@pytest.mark.parametrize("name", sorted({*ARCHITECTURES} - REFUSED))
def test_every_architecture_that_is_trained_can_be_compiled(tmp_path: Path, name: str) -> None:
    path = str(save_tiny(name, tmp_path, VOCABULARY))
    policy = load_policy(path, "fp32", ALONE)
    fuse_layers(policy.model, "eager")
    trained(policy, 200)
    assert not counters["graph_break"]


def test_after_the_warm_up_nothing_is_compiled(tmp_path: Path) -> None:
    policy = load_policy(str(save_tiny("gemma3_text", tmp_path, VOCABULARY)), "fp32", ALONE)
    fuse_layers(policy.model, BACKEND)
    step = MicroStep(Objective(loss=ReinforceLoss()), 0.8, policy, None)
    step.warm()
    assert not policy.parameters.gradients.any()  # type: ignore[attr-defined]
    compiled = counters["stats"]["unique_graphs"]
    assert compiled > 0
    for rows in (30, 90, 400):
        trained(policy, rows)
    assert counters["stats"]["unique_graphs"] == compiled
