"""Whole runs whose rounds overlap training, on simulated engines: the flow, the cluster, rewards,
learners, gate and records are real."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tests.flows.asynchronous_records import check, commits
from tests.flows.conftest import SIMULATED, Finished, Launcher

pytestmark = pytest.mark.flow

NUM_STEPS = 5
SETTINGS = (
    *SIMULATED,
    f"num_steps={NUM_STEPS}",
    "engine.step_s=0.05",
    "keep.checkpoint_every_steps=2",
)


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
    check(run, async_ratio=1.0, num_steps=NUM_STEPS)


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
    ).fetchall()
    assert overlaps[0][0] > 0
