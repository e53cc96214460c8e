"""A run with a loss, an advantage and a policy of the user's own trains bitwise what the same
formulas built in do; a file that has changed is told by the resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import SIMULATED, Launcher

pytestmark = pytest.mark.flow

PARTS = """
from tasks.learner.losses.weighted import weighted_loss
from tasks.learner.token_loss import PolicyLoss, importance
from tasks.scheduling.policies.sync import SyncConfig


class Loss(PolicyLoss):
    cap: float

    def token_loss(self, logp, batch):
        ratio = importance(logp, batch, "token")
        weight = ratio.clamp(max=self.cap)
        return weighted_loss(weight, logp, batch, truncated=ratio > self.cap)


class Advantage:
    def of(self, rewards):
        mean = sum(rewards) / len(rewards)
        return [reward - mean for reward in rewards]


class Policy(SyncConfig):
    pass
"""
BUILT_IN = (
    "learner.loss.kind=reinforce", "learner.loss.importance_cap=1.5",
    "learner.advantage.kind=dr_grpo", 'run_name="built-in"',
)  # fmt: skip


def manifest(root: Path, run: str) -> Mapping[str, Any]:  # Any: JSON values
    found: dict[str, Any] = json.loads((root / run / "manifest.json").read_text())
    return found


def digests(root: Path, run: str) -> list[str]:
    """The digests of the weights after each step of a run."""
    files = sorted((root / run / "steps").glob("*.json"))
    return [json.loads(path.read_text())["weights"]["digest"] for path in files]


def test_parts_by_path_train_what_built_in_ones_do_and_a_changed_file_is_told(
    launcher: Launcher, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(PARTS)
    settings = ['run_name="own"', "learner.loss.kwargs.cap=1.5"]
    for field, name in (
        ("learner.loss", "Loss"), ("learner.advantage", "Advantage"), ("scheduling", "Policy"),
    ):  # fmt: skip
        settings += [f"{field}.kind=custom", f"{field}.path={mine}:{name}"]
    for chosen in (BUILT_IN, settings):
        finished = launcher.run(tmp_path, *SIMULATED, *chosen)
        assert finished.code == 0, finished.out + finished.err
    assert digests(tmp_path, "own") == digests(tmp_path, "built-in")
    assert len(digests(tmp_path, "own")) == 2
    assert len(manifest(tmp_path, "own")["source_digests"]) == 3
    mine.write_text(PARTS + "# mended\n")
    resumed = launcher.run(tmp_path, "num_steps=3", resume="own")
    assert resumed.code == 0, resumed.out + resumed.err
    assert "the file of learner.loss.path has changed" in " ".join(resumed.out.split())
    changed = [change["field"] for change in manifest(tmp_path, "own")["changes"]]
    assert "learner.loss.path (file)" in changed
