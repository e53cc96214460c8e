"""Runs that see whose rounds overlap training, on the real engine: what runs while a newer tower is
loaded, and what goes on in another engine, has its pictures there."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import duckdb
import pytest

from artifacts.pictures import content_of
from tests.flows.asynchronous_records import check, commits, num_mixed
from tests.flows.conftest import ENDS_WITHIN_S, Launcher, moment, wait_for, worker_of

pytestmark = [pytest.mark.flow, pytest.mark.engine]

NUM_STEPS, RATIO = 4, 1.5
SETTINGS = (
    "learner.vision=trained",
    "scheduling.kind=asynchronous",
    f"num_steps={NUM_STEPS}",
    "sampling.max_response_tokens=40",
    "engine.max_model_len=96",
    # a model that was hardly warmed up chatters to the bound
    f"model.profile={json.dumps({'warm_up_steps': 2})}",
)


def check_pictures(run: Path) -> None:
    """Every response that was trained has its prompt's pictures, each kept once by content."""
    kept = {path.name: path.read_bytes() for path in (run / "pictures").iterdir()}
    assert kept == {content_of(data): data for data in kept.values()}
    table = f"read_parquet('{run}/responses/*/*.parquet', union_by_name=true)"
    rows = duckdb.sql(f"select pictures from {table} where fate = 'trained'").fetchall()
    assert rows
    assert all(pictures for (pictures,) in rows)
    assert {picture["content"] for (pictures,) in rows for picture in pictures} <= set(kept)


@pytest.mark.parametrize("at_update", ["interrupt", "keep"])
def test_rounds_overlap_training_and_what_runs_goes_on_with_a_newer_tower(
    launcher: Launcher, tmp_path: Path, at_update: str
) -> None:
    settings = (
        f'run_name="{at_update}"',
        f"scheduling.at_update={at_update}",
        f"scheduling.async_ratio={RATIO}",
        'cluster.roles="rollout: 0, learner: 1"',
        # generation takes longer than training: a response runs whenever weights are published
        "engine.max_num_seqs=1",
    )
    finished = launcher.run(tmp_path, *SETTINGS, *settings, preset="tiny-vision")
    assert finished.code == 0, finished.err
    run = tmp_path / at_update
    check(run, RATIO, NUM_STEPS)
    check_pictures(run)
    assert num_mixed(run, NUM_STEPS) > 0


@pytest.mark.recovery
def test_what_was_stopped_or_lost_goes_on_in_another_engine(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Engines and learner take turns; one of two engines is killed in the middle of a round."""
    run = tmp_path / "in-turn"
    settings = (
        f'run_name="{run.name}"',
        "scheduling.at_update=pause",
        'cluster.roles="rollout: 0-1, learner: 1"',
        "engine.max_num_seqs=3",
        "engine.report_tokens=4",
    )
    process = launcher.start(tmp_path, *SETTINGS, *settings, preset="tiny-vision")
    wait_for(moment(run, "steps/00001.json"), process)
    worker_of(process, "engine-0").send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    check(run, async_ratio=1.0, num_steps=NUM_STEPS)
    check_pictures(run)
    assert num_mixed(run, NUM_STEPS) > 0
    figures = [commit["metrics"] for commit in commits(run)]
    assert sum(step["queue/carried_prompts"] for step in figures) > 0
