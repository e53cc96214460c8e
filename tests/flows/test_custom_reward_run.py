"""Runs with a reward of the user's own: what it needs reaches it, nothing that it never pays is
called trained, and a number beyond all bounds is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.conftest import SIMULATED, Finished, Launcher

pytestmark = pytest.mark.flow

REWARD = """
import os
from beside import NUMBER

def reward(prompt, response, gold):
    return NUMBER if os.environ["HOME"] else 1.0
"""


def run_with(launcher: Launcher, root: Path, number: str, *settings: str) -> Finished:
    """A run whose reward always pays this number, which stands in a module beside it."""
    (root / "own_reward.py").write_text(REWARD)
    (root / "beside.py").write_text(f"NUMBER = {number}\n")
    return launcher.run(
        root,
        *SIMULATED,
        'run_name="own"',
        "rewards.*.kind=custom",
        f"rewards.*.path={root}/own_reward.py:reward",
        'rewards.*.environment=["HOME"]',
        *settings,
    )


def test_a_reward_that_never_pays_is_told_and_no_token_is_called_trained(
    launcher: Launcher, tmp_path: Path
) -> None:
    finished = run_with(launcher, tmp_path, "0.0", "num_steps=3")
    assert finished.code == 0, finished.err
    told = "every answer got 0 in 3 steps in a row, up to step 3: is the reward right?; answers"
    assert f"warning: {told}" in " ".join(finished.out.split())
    summary = (tmp_path / "own/report/summary.md").read_text()
    assert "No step made an update: every answer got 0 (is the reward right?)" in summary
    for path in (tmp_path / "own/steps").glob("*.json"):
        metrics = json.loads(path.read_text())["metrics"]
        assert metrics["ledger/trained_tokens"] == 0 < metrics["ledger/no_update_tokens"]


def test_a_reward_beyond_all_bounds_ends_the_run_with_a_sentence(
    launcher: Launcher, tmp_path: Path
) -> None:
    finished = run_with(launcher, tmp_path, "1e200")
    assert finished.code != 0
    said = " ".join((finished.out + finished.err).split())
    assert "a reward must be a finite number from -1,000,000 to 1,000,000, got 1e+200" in said
    assert "Traceback" not in said
