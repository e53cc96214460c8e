"""Multilevel batching in a whole run whose flow is killed while prompts wait that were deferred
twice: they are trained after it, once, and none is lost. The engines are simulated."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.flows.conftest import SIMULATED, Launcher, wait_for

pytestmark = pytest.mark.flow

NUM_STEPS = 5
MULTILEVEL = (
    *("scheduling.kind=multilevel_batching", "scheduling.prompt_overprovision=2"),
    f"num_steps={NUM_STEPS}",
)


def test_prompts_that_were_deferred_twice_outlive_the_flow(
    launcher: Launcher, tmp_path: Path
) -> None:
    run = tmp_path / "multilevel"
    process = launcher.start(tmp_path, *SIMULATED, *MULTILEVEL, f'run_name="{run.name}"')
    wait_for(run / "steps" / "00003.json", process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    resumed = launcher.run(tmp_path, f"num_steps={NUM_STEPS}", resume=run.name)
    assert resumed.code == 0, resumed.err
    plans = [
        json.loads(path.read_text())["plan"] for path in sorted((run / "plans").glob("*.json"))
    ]
    kinds = [plan["kind"] for plan in plans]
    assert kinds[:NUM_STEPS] == ["short", "short", "middle", "long", "short"]
    assert kinds[NUM_STEPS:] == ["drain"]
    folders = sorted((run / "groups").glob("step=*"))
    trained = [row["prompt_id"] for step in folders for row in pq.read_table(step).to_pylist()]
    asked = {prompt["prompt_id"] for plan in plans for prompt in plan["prompts"]}
    assert len(trained) == len(set(trained)) == 4 * (NUM_STEPS + 1)
    assert set(trained) == asked
