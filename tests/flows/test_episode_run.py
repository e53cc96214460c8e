"""A whole run of episodes through the command: the real engine, environments in processes of their
own, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from artifacts.episodes import Ending
from artifacts.journal import Journal
from artifacts.records import Fate, Outcome
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tests.flows.conftest import Finished, Launcher, booked_as_trained

pytestmark = [pytest.mark.flow, pytest.mark.engine]


@pytest.fixture(scope="module")
def finished(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Path]:
    """Two steps of four games, each played by four."""
    root = tmp_path_factory.mktemp("runs")
    finished = launcher.run(
        root,
        'run_name="games"',
        "sampling.max_response_tokens=32",
        preset="tiny-agent",
    )
    return finished, root / "games"


def rows_of(run: Path) -> list[ResponseRow]:
    journal = Journal(Store.open(str(run)))
    return [row for step in (1, 2) for row in journal.read(step)]


def test_a_run_of_episodes_trains_all_that_it_played(finished: tuple[Finished, Path]) -> None:
    ended, run = finished
    assert ended.code == 0, ended.err
    rows = rows_of(run)
    assert [row.fate for row in rows] == [Fate.TRAINED] * 32
    for row in rows:
        generated, score = row.response.generated, row.response.score
        assert generated.episode is not None
        assert score is not None
        assert score.scorer == "episode"
        assert generated.episode.ending is Ending.TERMINATED
        turns = generated.episode.turns
        assert score.reward == sum(turn.reward or 0.0 for turn in turns)
        assert score.outcome is (Outcome.OK if score.reward else Outcome.WRONG)
        assert turns[0].observation == "="
        assert generated.episode.last_observation in ("y", "n")
    by_prompt = {row.prompt.prompt_id: row.prompt for row in rows}
    assert len({prompt.episode_seed for prompt in by_prompt.values()}) == len(by_prompt) == 8


def test_only_sampled_tokens_are_in_the_ledger(finished: tuple[Finished, Path]) -> None:
    _, run = finished
    sampled = sum(row.response.generated.num_sampled for row in rows_of(run))
    commits = [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]
    assert sum(booked_as_trained(commit["metrics"]) for commit in commits) == sampled
