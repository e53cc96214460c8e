"""Dynamic sampling in a whole run, in rounds that score last: groups whose rewards agree give way
to others, wave by wave. The engines are simulated: their answers are right now and then."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from tests.flows.conftest import KINDS_TRAINED, SIMULATED, TRAINED, Launcher

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module", params=TRAINED, ids=KINDS_TRAINED)
def run(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """Groups of two, whose rewards of 0 and 1 agree in every second one at least, however often an
    answer is right."""
    root = tmp_path_factory.mktemp("runs")
    settings = (
        "batch.prompts_per_step=8",
        "batch.responses_per_prompt=2",
        "scheduling.dynamic_sampling=1",
        "scheduling.reward_timing=after_rollout",
    )
    finished = launcher.run(root, 'run_name="dapo"', *SIMULATED, *settings, *request.param)
    assert finished.code == 0, finished.err
    return root / "dapo"


def rounds(run: Path) -> list[dict[str, list[str]]]:
    return [json.loads((run / "rounds" / f"0000{step}.json").read_text()) for step in (1, 2)]


def rewards_of(run: Path, step: int) -> dict[str, list[float]]:
    """Rewards of every prompt that was asked in a step."""
    query = (
        "select prompt_id, list(reward) from"
        f" read_parquet('{run}/responses/step=0000{step}/*.parquet') group by prompt_id"
    )
    return dict(duckdb.sql(query).fetchall())


def test_groups_that_agree_are_replaced_until_the_reserve_is_used_up(run: Path) -> None:
    assert any(one["filtered"] for one in rounds(run))
    for step, one in enumerate(rounds(run), start=1):
        rewards = rewards_of(run, step)
        assert set(rewards) == {*one["accepted"], *one["filtered"]}
        assert all(len(set(rewards[prompt])) == 1 for prompt in one["filtered"])
        flat = [prompt for prompt in one["accepted"] if len(set(rewards[prompt])) == 1]
        assert not flat or len(one["filtered"]) == 8  # as many as were in reserve


def test_a_step_trains_as_many_groups_as_without(run: Path) -> None:
    assert [len(one["accepted"]) for one in rounds(run)] == [8, 8]
    for step in (1, 2):
        commit = json.loads((run / "steps" / f"0000{step}.json").read_text())
        assert commit["counters"]["prompts_trained"] == 8 * step
        assert commit["metrics"]["round/filtered_prompts"] == len(rounds(run)[step - 1]["filtered"])


def test_nothing_is_scored_while_anything_generates(run: Path) -> None:
    """What takes the place of filtered groups is a wave of its own: generated whole, then
    scored."""
    for step in (1, 2):
        rows = f"read_parquet('{run}/responses/step=0000{step}/*.parquet')"
        query = f"""
            select count(*) from {rows} as scored join {rows} as running
            on running.submitted_s < scored.score_started_s
            and running.finished_s > scored.score_started_s
        """
        assert duckdb.sql(query).fetchall() == [(0,)]
