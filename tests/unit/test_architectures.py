"""Packed tree attention gives each architecture's own log-probabilities and gradients, and what it
cannot run is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner_factories import (
    ALONE,
    VOCABULARY,
    check_gradients,
    naive_logp,
    naive_loss,
    naive_model,
    random_groups,
    run_rows,
)

from research.benchmarks.tiny_architectures import ARCHITECTURES, save_tiny
from tasks.learner import tree_attention
from tasks.learner.advantage import GrpoAdvantage
from tasks.learner.architecture import check_architecture
from tasks.learner.losses.weighted import ReinforceLoss
from tasks.learner.micro_step import MicroStep
from tasks.learner.objective import Objective
from tasks.learner.policy import load_policy
from tasks.learner.samples import SequenceMean, training_set

REFUSED = {
    "gemma2": "soft-capped attention .*soft-capped logits",
    "phi": "a head with a bias",
    "gpt_oss": "attention sinks",
}


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in REFUSED])
def test_packed_training_computes_what_the_architecture_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tree_attention, "QUERIES_PER_BLOCK", 16)
    path = str(save_tiny(name, tmp_path, VOCABULARY))
    policy, model = load_policy(path, "fp32", ALONE), naive_model(path)
    samples = training_set(random_groups(3), GrpoAdvantage(), SequenceMean()).samples
    step = MicroStep(Objective(loss=ReinforceLoss()), 0.8, policy, None)
    total = run_rows(step, samples, 60).loss_sum

    expected = naive_loss(samples, lambda sample: naive_logp(model, sample, temperature=0.8)[0])
    expected.backward()

    assert total == pytest.approx(expected.item(), rel=1e-4)
    assert {name for name, _ in model.named_parameters()} == policy.parameters.shapes.keys()
    check_gradients(policy, model)


FOR_ENGINES = {
    "qwen2 with windows": "windows in some of its layers only",
    **dict.fromkeys(
        ("mixtral", "glm4_moe", "deepseek_v3"),
        "experts, of which engines were given those of Qwen3-MoE and OLMoE alone",
    ),
}


@pytest.mark.parametrize(("name", "reason"), (REFUSED | FOR_ENGINES).items())
def test_what_it_cannot_run_is_refused_with_the_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    path = save_tiny(name, tmp_path, VOCABULARY)
    with pytest.raises(
        ValueError, match=f"cannot train {name.split()[0]} .*{reason}.*docs/models.md"
    ):
        check_architecture(path)


def test_an_architecture_that_nobody_tried_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny("llama", tmp_path, VOCABULARY)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"exaone4"'))
    check_architecture(tmp_path)
    assert "architecture=exaone4 is not among those of docs/models.md" in caplog.text
