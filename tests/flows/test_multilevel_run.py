"""Multilevel batching in a whole run whose flow is killed while prompts wait that were deferred
twice: they are trained after it, once, and none is lost, and what they had is verified. The engines
are simulated."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.flows.conftest import SIMULATED, Launcher, wait_for

pytestmark = pytest.mark.flow

NUM_STEPS = 5
MULTILEVEL = (
    *("scheduling.kind=multilevel_batching", "scheduling.prompt_overprovision=2"),
    *("engine.verify_deferred=true", "engine.draft_divergence=0.1"),
    f"num_steps={NUM_STEPS}",
)


Row = dict[str, Any]  # Any: values of a table


def rows_of(run: Path, step: int) -> dict[tuple[str, int], Row]:
    """The responses of a step, by prompt and index."""
    rows = pq.read_table(run / "responses" / f"step={step:05d}").to_pylist()
    return {(row["prompt_id"], row["index"]): row for row in rows}


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
    before = rows_of(run, 3)
    verified = [row for name, row in rows_of(run, 4).items() if row["num_verified"]]
    assert verified
    for row in verified:
        num_same = row["num_verified"]
        draft = before[row["prompt_id"], row["index"]]["token_ids"]
        assert draft[:num_same] == row["token_ids"][:num_same]
