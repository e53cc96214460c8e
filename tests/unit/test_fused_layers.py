"""Layers whose norms, rotary embeddings and gated products are compiled: no break in their graphs,
the same gradients, and nothing left to compile after the warm-up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from learner_factories import ALONE, VOCABULARY, random_groups, run_rows
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention

from research.benchmarks.tiny_architectures import ARCHITECTURES, save_tiny
from tasks.learner import tree_attention
from tasks.learner.advantage import GrpoAdvantage
from tasks.learner.architecture import read_config
from tasks.learner.fused_layers import ROTARY, fuse_layers, layers_of
from tasks.learner.losses.weighted import ReinforceLoss
from tasks.learner.micro_step import MicroStep
from tasks.learner.objective import Objective
from tasks.learner.policy import PolicyModel, load_policy
from tasks.learner.rows import idle_row, rows_to_compile
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


# mixtures without norms of queries: experts stay as they are, and two norms are fused
UNFUSED_EXPERTS = {"mixtral", "glm4_moe"}


def load_fused(path: str, backend: str, recompute: bool = False) -> PolicyModel:
    policy = load_policy(path, "fp32", ALONE, "replicated", recompute)
    backbone = policy.backbone
    of_layer = 2 if read_config(Path(path)).model_type in UNFUSED_EXPERTS else 3
    assert fuse_layers(backbone, backend) >= of_layer * len([*layers_of(backbone)])
    return policy


def trained(policy: PolicyModel, rows: int) -> tuple[float, torch.Tensor]:
    """The loss and the gradients of a few groups in rows of so many tokens."""
    samples = training_set(random_groups(3), GrpoAdvantage(), SequenceMean()).samples
    step = MicroStep(Objective(loss=ReinforceLoss()), 0.8, policy, None)
    loss = run_rows(step, samples, rows).loss_sum
    return loss, policy.parameters.gradients.clone()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "recompute"), [("qwen3", False), ("gemma3_text", True)])
def test_compiled_layers_have_the_gradients_of_the_layers(
    tmp_path: Path, name: str, recompute: bool
) -> None:
    path = str(save_tiny(name, tmp_path, VOCABULARY))
    loss, expected = trained(load_policy(path, "fp32", ALONE, "replicated", recompute), 60)
    policy = load_fused(path, BACKEND, recompute)
    found, gradients = trained(policy, 60)
    assert found == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    assert not counters["graph_break"]


@pytest.mark.parametrize("name", sorted({*ARCHITECTURES} - REFUSED - {"qwen3", "gemma3_text"}))
def test_every_architecture_that_is_trained_can_be_compiled(tmp_path: Path, name: str) -> None:
    policy = load_fused(str(save_tiny(name, tmp_path, VOCABULARY)), "eager")
    assert policy.score(idle_row(policy.device, 40), 1.0).logp.isfinite().all()
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]


def test_after_the_warm_up_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of layers nor of flex_attention, for rows of any length; windows are left, too."""
    flex = torch.compile(flex_attention, backend="eager", dynamic=True, fullgraph=True)
    monkeypatch.setattr(tree_attention, "_compiled_flex", lambda: flex)
    module_of_flex = sys.modules[flex_attention.__module__]
    monkeypatch.setattr(module_of_flex, "_validate_device", lambda *tensors: None)  # a CPU's too

    def attention(
        module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, tree: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        plan = tree.within(kwargs.get("sliding_window"))
        return tree_attention.flex(q, k, v, plan, scaling).transpose(1, 2), None

    monkeypatch.setattr(tree_attention, "tree_attention", attention)
    path = str(save_tiny("mistral with windows", tmp_path, VOCABULARY))
    loss, expected = trained(load_policy(path, "fp32", ALONE), 60)
    policy = load_fused(path, "eager")
    step = MicroStep(Objective(loss=ReinforceLoss()), 0.8, policy, None)
    step.warm(1 << 14)
    assert not policy.parameters.gradients.any()  # type: ignore[attr-defined]
    compiled = counters["stats"]["unique_graphs"]
    assert compiled > 0
    found, gradients = trained(policy, 60)
    for rows in (20, 150):
        trained(policy, rows)
    assert counters["stats"]["unique_graphs"] == compiled
    assert found == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)


def test_a_layer_that_cannot_be_traced_whole_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A break in its graph would cost time on every row, and nobody would know."""

    def breaks(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return hidden

    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaRMSNorm.forward", breaks)
    policy = load_fused(str(save_tiny("llama", tmp_path, VOCABULARY)), "eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        policy.score(idle_row(policy.device), 1.0)


@pytest.mark.parametrize(
    ("window", "most", "lengths"),
    [(None, 16384, [1, 64, 384]), (4096, 16384, [1, 64, 384, 4480]), (4096, 300, [1, 64])],
)
def test_the_warm_up_has_rows_of_every_kind_that_fit(
    window: int | None, most: int, lengths: list[int]
) -> None:
    rows = rows_to_compile(torch.device("cpu"), window, most)
    assert [len(row.tokens) for row in rows] == lengths
