"""Whole runs whose rounds overlap training, on simulated engines: the flow, the cluster, rewards,
learners, gate and records are real."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tests.flows.asynchronous_records import (
    PROMPTS,
    RESPONSES,
    check,
    check_evaluation,
    commits,
    num_mixed,
    rows,
)
from tests.flows.conftest import SIMULATED, Finished, Launcher

pytestmark = pytest.mark.flow

NUM_STEPS, NUM_EVALUATED = 4, 5  # the latter where a step after an evaluated one is looked at
SETTINGS = (
    *SIMULATED,
    f"num_steps={NUM_STEPS}",
    "engine.profile.step_s=0.05",
    "keep.checkpoint_every_steps=2",
)


@pytest.fixture(scope="module")
def overlapped(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Finished, Path]:
    """Evaluated after every second step, too."""
    root = tmp_path_factory.mktemp("runs")
    settings = ('run_name="overlapped"', "evaluation.every_steps=2", "evaluation.num_prompts=12")
    settings = (*settings, f"num_steps={NUM_EVALUATED}")
    finished = launcher.run(root, *SETTINGS, *settings, preset="tiny-async")
    return finished, root / "overlapped"


def test_a_run_trains_every_prompt_once_and_within_the_bound(
    overlapped: tuple[Finished, Path],
) -> None:
    finished, run = overlapped
    assert finished.code == 0, finished.err
    check(run, async_ratio=1.0, num_steps=NUM_EVALUATED)


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


def test_an_evaluation_is_of_one_version_and_no_round_waits_for_it(
    overlapped: tuple[Finished, Path],
) -> None:
    """The round after an evaluated step begins before that step is committed, and so before its
    evaluation; its update comes after it."""
    finished, run = overlapped
    for step in (0, 2, 4, NUM_EVALUATED):
        began_s, ended_s = check_evaluation(run, step, num_prompts=12)
        if step not in (2, 4):
            continue
        committed = run / "steps" / f"{step:05d}.json"
        next_plan = run / "plans" / f"{step + 1:05d}.json"
        assert next_plan.stat().st_mtime < committed.stat().st_mtime <= began_s
        assert ended_s <= _updated_s(run, step + 1), "else weights changed under it"
    figures = [commit["metrics"] for commit in commits(run)]
    assert [step["engine/unclaimed_responses"] for step in figures] == [0] * NUM_EVALUATED
    assert [figures[step - 1]["stall/evaluation_s"] for step in (1, 2, 4)] == [0, 0, 0]
    assert [step["round/attempts"] for step in figures] == [1] * NUM_EVALUATED
    assert "held-out reward after step 2" in finished.out


def _updated_s(run: Path, step: int) -> float:
    """When the update of a step began, Unix seconds."""
    spans = f"read_parquet('{run}/spans/step={step:05d}/*.parquet')"
    found = duckdb.sql(f"select min(start_s) from {spans} where kind = 'update'").fetchall()
    return float(found[0][0])


def test_engines_that_finish_what_they_run_before_they_load_mix_no_versions(
    launcher: Launcher, tmp_path: Path
) -> None:
    """A version more is allowed than the ratio makes necessary; the stall is told."""
    settings = ('run_name="drained"', "scheduling.at_update=drain", "scheduling.extra_lag=1")
    finished = launcher.run(tmp_path, *SETTINGS, *settings, preset="tiny-async")
    assert finished.code == 0, finished.err
    run = tmp_path / "drained"
    check(run, async_ratio=1.0, num_steps=NUM_STEPS, extra_lag=1)
    assert num_mixed(run, NUM_STEPS) == 0
    figures = [commit["metrics"] for commit in commits(run)]
    assert max(step["lag/mean_versions"] for step in figures) > 0
    assert max(step["stall/rollout_s"] for step in figures) > 0
    assert {step["lag/recomputed_tokens"] for step in figures} == {0}


def test_devices_that_generate_and_train_in_turn_go_on_with_what_was_stopped(
    launcher: Launcher, tmp_path: Path
) -> None:
    """No engine generates while a step trains, and no token is generated twice."""
    settings = (
        'run_name="in-turn"',
        "scheduling.at_update=pause",
        'cluster.roles="rollout: 0-1, learner: 1"',
        "engine.profile.max_batch=6",
    )
    finished = launcher.run(tmp_path, *SETTINGS, *settings, preset="tiny-async")
    assert finished.code == 0, finished.err
    run = tmp_path / "in-turn"
    check(run, async_ratio=1.0, num_steps=NUM_STEPS)
    assert num_mixed(run, NUM_STEPS) > 0
    figures = [commit["metrics"] for commit in commits(run)]
    assert max(step["lag/recomputed_tokens"] for step in figures) > 0
    assert {step["ledger/aborted_tokens"] for step in figures} == {0}
    assert {step["ledger/stale_tokens"] for step in figures} == {0}
    assert [step["queue/carried_prompts"] for step in figures] == [*[PROMPTS] * (NUM_STEPS - 1), 0]
    assert {step["round/left_running"] for step in figures} == {0}
    spans = f"read_parquet('{run}/spans/step=*/*.parquet', hive_partitioning=true)"
    beside = duckdb.sql(
        f"select count(*) from {spans} as train, {spans} as rollout where train.kind = 'train'"
        " and rollout.kind = 'rollout' and rollout.start_s < train.end_s"
        " and train.start_s < rollout.end_s"
    ).fetchall()
    assert beside == [(0,)]


def test_groups_are_trained_as_they_are_accepted_and_no_engine_makes_room(
    launcher: Launcher, tmp_path: Path
) -> None:
    """The learner is on the device of one of the engines, and waits for long answers."""
    settings = (
        'run_name="streamed"',
        "stream_trainer.enabled=true",
        'cluster.roles="rollout: 0-1, learner: 1"',
        "engine.profile.max_batch=3",
        "scheduling.async_ratio=0.5",
    )
    finished = launcher.run(tmp_path, *SETTINGS, *settings, preset="tiny-async")
    assert finished.code == 0, finished.err
    run = tmp_path / "streamed"
    check(run, async_ratio=0.5, num_steps=NUM_STEPS)
    figures = [commit["metrics"] for commit in commits(run)]
    assert max(step["train/streamed_groups"] for step in figures) > 0
    assert {step["rollout/migrated_responses"] for step in figures} == {0}


def test_what_is_carried_of_a_complete_group_is_what_is_trained(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Six responses a prompt, of which four are trained, over the cache of older weights."""
    settings = (
        'run_name="wide"',
        "scheduling.at_update=keep",
        "scheduling.response_overprovision=1.5",
    )
    finished = launcher.run(tmp_path, *SETTINGS, *settings, preset="tiny-async")
    assert finished.code == 0, finished.err
    done = commits(tmp_path / "wide")
    assert [commit["metrics"]["lag/max_versions"] <= 1 for commit in done] == [True] * NUM_STEPS
    assert {commit["metrics"]["lag/recomputed_tokens"] for commit in done} == {0}
    prompts = done[-1]["queue"]
    assert prompts["num_drawn"] == prompts["num_trained"] == NUM_STEPS * PROMPTS
    trained = [
        row
        for step in range(1, NUM_STEPS + 1)
        for row in rows(tmp_path / "wide", step, "prompt_id, index, fate")
        if row[2] == "trained"
    ]
    assert len(trained) == len(set(trained)) == NUM_STEPS * PROMPTS * RESPONSES
    assert {index for _, index, _ in trained} > {0, 1, 2, 3}, "any of the six may be trained"
