"""A run with elastic workers, of which elastic workers come, leave and are killed, and the flow
with them: nothing of it is lost, doubled or left over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import BRIEFLY, ENDS_WITHIN_S, ROOT, SIMULATED
from tests.flows.prefect_tables import copy_tables

pytestmark = pytest.mark.flow

SEED, COUNT = 8, 4
SLOW = "engine.profile.step_s=0.03"  # of a token: a round takes some seconds


def test_a_run_whose_elastic_workers_come_and_go_loses_nothing(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    copy_tables(tmp_path)
    command = [sys.executable, "-m", "research.kills.elastic_injections", "--steps", "14"]
    command += ["--seed", str(SEED), "--count", str(COUNT), "--json", str(figures)]
    command += ["--within", "60", "--out", str(tmp_path)]
    for setting in (*SIMULATED, SLOW, BRIEFLY):
        command += ["--set", setting]
    finished = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=ENDS_WITHIN_S
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    told = json.loads(figures.read_text())
    assert told["injections"] >= 1
    assert told["told"] == {}
