"""Packed tree attention gives each architecture's own log-probabilities and gradients, and what it
cannot run is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from turn_factories import VOCABULARY

from research.benchmarks.learner_checks import packed_training
from research.benchmarks.tiny_architectures import ARCHITECTURES, save_tiny
from tasks.learner import tree_attention
from tasks.learner.architecture import check_architecture

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
    packed_training(save_tiny(name, tmp_path, VOCABULARY))


FOR_ENGINES = {"qwen2 with windows": "windows in some of its layers only"}


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


def test_experts_that_no_engine_was_given_are_refused(tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path, VOCABULARY)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"qwen3_moe"', '"qwen2_moe"'))
    with pytest.raises(ValueError, match=r"experts, of which engines were given those of .*alone"):
        check_architecture(tmp_path)
