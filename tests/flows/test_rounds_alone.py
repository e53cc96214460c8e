"""Rounds without training: generated, scored and recorded as those of a run, gone on with after a
kill, and asked again with the prompts of another run's rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.flows.conftest import DRAWN, SIMULATED, Finished, Launcher, wait_for

pytestmark = pytest.mark.flow

ALONE = "trains=false"
TAIL_BATCHING = 'scheduling={"kind": "tail_batching", "prompt_overprovision": 1.5}'


def commits(run: Path) -> list[dict[str, Any]]:  # Any: JSON
    return [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]


def asked(run: Path, step: int) -> list[str]:
    """The prompts of a step's round."""
    rows = f"read_parquet('{run}/responses/step={step:05d}/*.parquet')"
    found = duckdb.sql(f"select distinct prompt_id from {rows} order by prompt_id").fetchall()
    return [prompt for (prompt,) in found]


@pytest.fixture(scope="module")
def alone(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Path]:
    """Three rounds of tail batching."""
    root = tmp_path_factory.mktemp("runs")
    words = (*SIMULATED, ALONE, TAIL_BATCHING, "num_steps=3", DRAWN, 'run_name="alone"')
    return launcher.run(root, *words), root / "alone"


def test_rounds_alone_are_recorded_and_nothing_is_trained(alone: tuple[Finished, Path]) -> None:
    finished, run = alone
    assert finished.code == 0, finished.err
    assert "of the rounds, without training" in finished.out
    assert "model:" not in finished.out
    assert len(commits(run)) >= 3
    for commit in commits(run):
        assert commit["weights"]["version"] == 0
        assert commit["checkpoint"] is None
        metrics = commit["metrics"]
        assert metrics["rollout/tokens"] > 0
        assert metrics["time/rollout_s"] > 0
        assert not [name for name in metrics if name.startswith("train/")]
        assert metrics["ledger/trained_tokens"] == 0
    rows = f"read_parquet('{run}/responses/*/*.parquet')"
    (rewards,) = duckdb.sql(f"select count(reward) from {rows}").fetchall()
    assert rewards[0] >= 3 * 16
    page = (run / "report" / "index.html").read_text()
    assert "reward of the rounds" in page
    assert "before and after" not in page
    for absent in ("checkpoints", "model", "evaluation"):
        assert not (run / absent).exists()


def test_the_prompts_of_a_runs_rounds_are_asked_again(
    launcher: Launcher, alone: tuple[Finished, Path], tmp_path: Path
) -> None:
    """Step by step, though other seeds would draw others and other answers finish first."""
    _, source = alone
    replays = f"replays={json.dumps(str(source))}"
    words = (*SIMULATED, ALONE, TAIL_BATCHING, "num_steps=3", replays, 'run_name="again"')
    finished = launcher.run(tmp_path, *words, "sampling.max_response_tokens=24")
    assert finished.code == 0, finished.err
    again = tmp_path / "again"
    steps = [commit["step"] for commit in commits(source)]
    assert [commit["step"] for commit in commits(again)] == steps
    for step in steps:
        plans = [(run / f"plans/{step:05d}.json").read_text() for run in (source, again)]
        first, second = (json.loads(plan)["plan"]["prompts"] for plan in plans)
        assert first == second
    assert asked(source, 1) == asked(again, 1)


def test_rounds_alone_go_on_after_a_kill(launcher: Launcher, tmp_path: Path) -> None:
    """Which prompts are put off depends on who finishes first, so that another run is no measure:
    what was committed stays, and every prompt is answered once."""
    words = (*SIMULATED, ALONE, TAIL_BATCHING, "num_steps=3", 'run_name="killed"')
    process = launcher.start(tmp_path, *words)
    run = tmp_path / "killed"
    try:
        wait_for(run / "steps" / "00001.json", process)
    finally:
        process.kill()
    process.wait()
    before = commits(run)
    finished = launcher.run(tmp_path, ALONE, resume="killed")
    assert finished.code == 0, finished.err
    after = commits(run)
    assert after[: len(before)] == before
    state = after[-1]["queue"]
    assert state["queue"] == []
    assert state["num_drawn"] == state["num_trained"] == 12
    rows = f"read_parquet('{run}/responses/*/*.parquet')"
    kept = f"select count(*) from {rows} where fate = 'trained' group by prompt_id"
    assert duckdb.sql(kept).fetchall() == [(4,)] * 12
