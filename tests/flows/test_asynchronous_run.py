"""Whole runs whose rounds overlap training, on simulated engines: the flow, the cluster, rewards,
learners, gate and records are real."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.flows.conftest import SIMULATED, Finished, Launcher, wait_for

pytestmark = pytest.mark.flow

NUM_STEPS = 5
SETTINGS = (
    *SIMULATED,
    f"num_steps={NUM_STEPS}",
    "engine.step_s=0.05",
    "keep.checkpoint_every_steps=2",
)


def commits(run: Path) -> list[dict[str, Any]]:  # Any: JSON
    """The commits of a run, in order."""
    return [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]


def rows(run: Path, step: int, columns: str) -> list[tuple[Any, ...]]:  # Any: values of a table
    """The responses of a step, sorted."""
    table = f"read_parquet('{run}/responses/step={step:05d}/*.parquet')"
    return duckdb.sql(f"select {columns} from {table} order by prompt_id, index").fetchall()


def check(run: Path, async_ratio: float) -> None:
    """Every step trained its groups, each prompt once, within the bound, and nothing is left."""
    done = commits(run)
    assert [commit["kind"] for commit in done] == ["asynchronous"] * NUM_STEPS
    assert [commit["weights"]["version"] for commit in done] == list(range(1, NUM_STEPS + 1))
    trained: list[tuple[str, int]] = []
    for step in range(1, NUM_STEPS + 1):
        oldest = step - 1 - math.ceil(async_ratio)
        for prompt, index, fate, versions in rows(run, step, "prompt_id, index, fate, versions"):
            if fate == "trained":
                trained.append((prompt, index))
                assert all(oldest <= span["version"] < step for span in versions)
    assert len(trained) == len(set(trained)) == NUM_STEPS * 16
    assert done[-1]["queue"]["carried"] == []


@pytest.fixture(scope="module")
def overlapped(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Finished, Path]:
    root = tmp_path_factory.mktemp("runs")
    finished = launcher.run(root, *SETTINGS, 'run_name="overlapped"', preset="tiny-async")
    return finished, root / "overlapped"


def test_a_run_trains_every_prompt_once_and_within_the_bound(
    overlapped: tuple[Finished, Path],
) -> None:
    finished, run = overlapped
    assert finished.code == 0, finished.err
    check(run, async_ratio=1.0)


def test_a_round_begins_while_the_step_before_it_trains(overlapped: tuple[Finished, Path]) -> None:
    _, run = overlapped
    lags = [commit["metrics"]["lag/mean_versions"] for commit in commits(run)]
    assert lags[0] == 0
    assert max(lags) == 1
    spans = f"read_parquet('{run}/spans/step=*/*.parquet', hive_partitioning=true)"
    overlaps = duckdb.sql(
        f"select count(*) from {spans} as train, {spans} as rollout where train.kind = 'train'"
        " and rollout.kind = 'rollout' and rollout.step > train.step"
        " and rollout.start_s < train.end_s"
    ).fetchone()
    assert overlaps is not None
    assert overlaps[0] > 0


def test_a_run_that_is_killed_resumes_within_the_bound(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.start(tmp_path, *SETTINGS, 'run_name="killed"', preset="tiny-async")
    run = tmp_path / "killed"
    wait_for(run / "steps" / "00002.json", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = launcher.run(tmp_path, resume="killed")
    assert resumed.code == 0, resumed.err
    check(run, async_ratio=1.0)
