"""Multilevel batching in a whole run whose flow is killed while prompts wait that were deferred
twice: they are trained after it, once, and none is lost, even where it goes on with another eta and
fewer levels. The engines are simulated."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.flows.conftest import SIMULATED, Launcher, wait_for

pytestmark = pytest.mark.flow

NUM_STEPS = 5
MULTILEVEL = (
    *("scheduling.kind=multilevel_batching", "scheduling.prompt_overprovision=2"),
    f"num_steps={NUM_STEPS}",
)


@pytest.fixture(scope="module")
def killed(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run whose flow is killed after three of its steps."""
    run = tmp_path_factory.mktemp("runs") / "multilevel"
    process = launcher.start(run.parent, *SIMULATED, *MULTILEVEL, f'run_name="{run.name}"')
    wait_for(run / "steps" / "00003.json", process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return run.parent


def test_prompts_that_were_deferred_twice_outlive_the_flow(
    launcher: Launcher, killed: Path, tmp_path: Path
) -> None:
    run = copied(killed, tmp_path)
    resumed = launcher.run(tmp_path, f"num_steps={NUM_STEPS}", resume=run.name)
    assert resumed.code == 0, resumed.err
    plans = plans_of(run)
    kinds = [plan["kind"] for plan in plans]
    assert kinds[:NUM_STEPS] == ["short", "short", "middle", "long", "short"]
    assert kinds[NUM_STEPS:] == ["drain"]
    assert num_trained_once(run, plans) == 4 * (NUM_STEPS + 1)


def test_a_run_goes_on_with_another_eta_and_fewer_levels(
    launcher: Launcher, killed: Path, tmp_path: Path
) -> None:
    """What was put off under the rules before is trained under those after, once."""
    run = copied(killed, tmp_path)
    num_begun = len(plans_of(run))
    changes = (MULTILEVEL[0], "scheduling.prompt_overprovision=1.5", "scheduling.num_levels=2")
    resumed = launcher.run(tmp_path, *changes, "num_steps=8", resume=run.name)
    assert resumed.code == 0, resumed.err
    plans = plans_of(run)
    asked = {(plan["kind"], len(plan["prompts"])) for plan in plans}
    assert {("short", 8), ("short", 6)} <= asked
    later = [plan for plan in plans[num_begun:] if plan["kind"] != "drain"]
    assert {plan["kind"] for plan in later} == {"short", "long"}
    assert num_trained_once(run, plans) >= 4 * 8


def copied(killed: Path, root: Path) -> Path:
    """The killed run and its database of MLflow's, to be gone on with below another root."""
    shutil.copytree(killed, root, dirs_exist_ok=True)
    return root / "multilevel"


def plans_of(run: Path) -> list[Any]:
    """Of its steps, as far as they were begun."""
    return [json.loads(path.read_text())["plan"] for path in sorted((run / "plans").glob("*.json"))]


def num_trained_once(run: Path, plans: Sequence[Any]) -> int:
    """Prompts that were trained, which must be all that were asked, each once."""
    folders = sorted((run / "groups").glob("step=*"))
    trained = [row["prompt_id"] for step in folders for row in pq.read_table(step).to_pylist()]
    asked = {prompt["prompt_id"] for plan in plans for prompt in plan["prompts"]}
    assert len(trained) == len(set(trained))
    assert set(trained) == asked
    return len(trained)
