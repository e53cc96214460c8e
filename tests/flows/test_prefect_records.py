"""A run as the pages of Prefect show it: its steps and evaluations as flow runs below its own, with
their tasks, each in its last state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from artifacts.commit import read_manifest
from artifacts.store import Store
from tests.flows.conftest import SIMULATED, Launcher

pytestmark = pytest.mark.flow

RECORDED_WITHIN_S = 60.0  # Prefect's server writes task runs some time after it was told of them
STEP_TASKS = ["gradients-{}", "publish-{}", "reward-sync-{}", "rollout-sync-{}", "update-{}"]


def found(launcher: Launcher, what: str, **filters: object) -> list[dict[str, Any]]:  # Any: JSON
    """What Prefect's server has of this kind."""
    url = f"{launcher.environment['PREFECT_API_URL']}/{what}/filter"
    rows: list[dict[str, Any]] = httpx.post(url, json=filters, timeout=30).json()
    return rows


def test_steps_are_flow_runs_with_their_tasks(launcher: Launcher, tmp_path: Path) -> None:
    finished = launcher.run(tmp_path, *SIMULATED, 'run_name="run"')
    assert finished.code == 0, finished.err
    (train,) = read_manifest(Store.open(str(tmp_path / "run"))).prefect_flow_run_ids
    steps = found(launcher, "flow_runs", flow_runs={"parent_flow_run_id": {"any_": [train]}})
    states = {step["name"]: step["state_type"] for step in steps}
    evaluations = ["evaluate-after-00000", "evaluate-after-00002"]
    names = [*evaluations, "step-00001-sync", "step-00002-sync"]
    assert states == dict.fromkeys(names, "COMPLETED")
    for step in steps:
        assert step["start_time"] < step["end_time"]
        assert step["run_count"] == 1
        assert f"{step['parameters']['plan']['round']['step']:05d}" in step["name"]
    ends = time.monotonic() + RECORDED_WITHIN_S
    for number in (1, 2):
        (step,) = (one for one in steps if one["name"].startswith(f"step-{number:05d}"))
        names = sorted(name.format(number) for name in STEP_TASKS)
        tasks: dict[str, str] = {}
        while tasks != dict.fromkeys(names, "COMPLETED"):
            assert time.monotonic() < ends, tasks
            runs = found(launcher, "task_runs", flow_runs={"id": {"any_": [step["id"]]}})
            tasks = {run["name"]: run["state_type"] for run in runs}
            time.sleep(0.5)
