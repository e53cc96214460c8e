"""The command that kills every kind of process of a run: two of its kinds, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import ENDS_WITHIN_S, ROOT
from tests.flows.prefect_tables import copy_tables

pytestmark = pytest.mark.flow

KINDS = ("learner", "flow")


def test_killed_runs_train_what_an_undisturbed_one_trains(tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes.json"
    copy_tables(tmp_path)
    command = [sys.executable, "-m", "research.kills.kills", "--quick", "--seed", "1"]
    command += ["--out", str(tmp_path), "--json", str(outcomes)]
    for kind in KINDS:
        command += ["--only", kind]
    finished = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=ENDS_WITHIN_S
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    learner, flow = json.loads(outcomes.read_text())
    assert (learner["kind"], learner["exits"]) == ("learner", [0])
    assert (flow["kind"], flow["exits"]) == ("flow", [-9, 0])
    assert learner["num_compared"] == flow["num_compared"] == 6
    assert learner["different"] == flow["different"] == []
