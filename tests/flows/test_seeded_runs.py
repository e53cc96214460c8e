"""Runs whose own devices leave the rest of a round to elastic workers: with one, the window closes,
the devices train in mid-round, and every step trains what it should; with none, the run is the
plain one."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from mlflow import MlflowClient

from artifacts.store import Store
from tasks.cluster.ports import free_port
from tests.flows.conftest import DRAWN, ENDS_WITHIN_S, SIMULATED, Launcher
from tests.flows.test_elastic_worker_runs import (
    SLOW,
    commits,
    elastic_worker,
    figure,
    handed,
    members,
    wait_until,
)

pytestmark = [pytest.mark.flow, pytest.mark.timeout(900)]

PRESET = "tiny-elastic"
STEPS = 10
RESPONSES = 4 * 4  # P0 * R0 of a small run


def trained(run: Path, step: int) -> list[tuple[object, ...]]:
    """The responses that a step trained."""
    rows = f"read_parquet('{run}/responses/step={step:05d}/*.parquet')"
    wanted = "prompt_id, index, token_ids, reward"
    return duckdb.sql(
        f"select {wanted} from {rows} where fate='trained' order by prompt_id, index"
    ).fetchall()


def told(run: Path, name: str) -> list[float | None]:
    """A figure of every step that may not have it."""
    return [commit["metrics"].get(name) for commit in commits(run)]


def test_an_elastic_worker_takes_the_rest_of_a_round_while_the_devices_train(
    launcher: Launcher, tmp_path: Path
) -> None:
    run, port = tmp_path / "seeded", free_port()
    process = launcher.start(
        tmp_path,
        *(*SIMULATED, DRAWN, SLOW, f"num_steps={STEPS}", f'run_name="{run.name}"'),
        f"cluster.scheduler_port={port}",
        preset=PRESET,
    )
    try:
        wait_until((run / "plans/00001.json").exists, "the first round", process)
        address, words = f"tls://127.0.0.1:{port}", handed(run)
        with elastic_worker(address, "spot", launcher.environment, *words):
            _, err = process.communicate(timeout=ENDS_WITHIN_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    for step in range(1, STEPS + 1):
        kept = trained(run, step)
        assert len(kept) == len({row[:2] for row in kept}) == RESPONSES
    assert figure(run, "round/attempts") == [1.0] * STEPS, "no step was begun again"
    closed = [commit for commit in commits(run) if commit["metrics"]["seeding/closed"]]
    assert closed, "the window closed"
    assert all(commit["metrics"]["rollout/freed_learners"] for commit in closed)
    assert sum(commit["metrics"]["train/streamed_groups"] for commit in closed) > 0
    assert members(run)["spot.g1"]["num_tokens"] > 0
    last = next(commit for commit in reversed(commits(run)) if commit["kind"] == "short")
    assert last["seeding"]["window_s"] == last["metrics"]["seeding/next_window_s"]
    assert last["metrics"]["seeding/elastic_workers_worth_holding"] > 0
    remembered = json.loads(Store.open(str(tmp_path)).checked("seeding.json"))
    for model, windows in remembered.items():
        assert model.startswith("tiny_llama (tiny")
        assert " on spot " in model
        assert model.endswith((" cpu, short rounds", " cpu, long rounds")), "the machine's cores"
        assert windows.keys() == {"1"}
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (tracked,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert len(client.get_metric_history(tracked.info.run_id, "seeding/own_s")) == STEPS
    assert "spot.g1" in (run / "report/index.html").read_text()


def test_without_an_elastic_worker_the_run_is_the_plain_one(
    launcher: Launcher, tmp_path: Path
) -> None:
    runs: list[Path] = []
    for name, seeds in (("alone", "true"), ("plain", "false")):
        done = launcher.run(
            tmp_path,
            *(*SIMULATED, f'run_name="{name}"', "scheduling.kind=sync"),
            *(f"seeding.enabled={seeds}", f"cluster.scheduler_port={free_port()}"),
            preset=PRESET,
        )
        assert done.code == 0, done.err
        runs.append(tmp_path / name)
    alone, plain = runs
    assert len(commits(alone)) == len(commits(plain)) == 2
    for step in (1, 2):
        assert trained(alone, step) == trained(plain, step)
    for name in ("rollout/freed_learners", "rollout/tokens", "train/streamed_groups"):
        assert figure(alone, name) == figure(plain, name)
    assert figure(alone, "seeding/closed") == [0.0, 0.0]
    assert told(alone, "seeding/window_s") == told(plain, "seeding/closed") == [None, None]
    assert not (tmp_path / "seeding.json").exists(), "there was nothing to learn"
