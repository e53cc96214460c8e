"""A run of episodes of which a host, a fork server, an engine and the flow are killed: nothing of
it is lost, doubled or left over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from research.kills.episode_injections import VICTIMS
from research.kills.injections import drawn
from tests.flows.conftest import BRIEFLY, ENDS_WITHIN_S, ROOT
from tests.flows.prefect_tables import copy_tables

pytestmark = [pytest.mark.flow, pytest.mark.engine]

SEED, COUNT = 1506, 4
SMALL = (
    "batch.prompts_per_step=8",
    "batch.responses_per_prompt=4",
    "episodes.hosts.num_hosts=4",
    "evaluation.num_prompts=4",
    BRIEFLY,
)


def test_a_run_of_which_everything_is_killed_once_loses_nothing(tmp_path: Path) -> None:
    injections = drawn(SEED, COUNT, VICTIMS)
    assert {name for injection in injections for name in injection.victims} == set(VICTIMS)
    figures = tmp_path / "figures.json"
    copy_tables(tmp_path)
    command = [sys.executable, "-m", "research.kills.episode_injections", "--steps", "12"]
    command += ["--seed", str(SEED), "--count", str(COUNT), "--json", str(figures)]
    command += ["--out", str(tmp_path)]
    for setting in SMALL:
        command += ["--set", setting]
    finished = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=ENDS_WITHIN_S
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    told = json.loads(figures.read_text())
    assert told["injections"] == COUNT
    assert told["counts"]["attempts at the run"] > told["runs"]
    assert told["counts"]["ended by itself"] == 0
    assert told["told"] == {}
