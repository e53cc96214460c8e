"""Schedules over episodes through the command: real environments, some of which are slow, and the
real engine. Long episodes are put off and trained later, surplus ones are stopped and come back,
and no token is older than the bound."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from artifacts.journal import Journal
from artifacts.records import Fate
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows.config.presets import preset_values
from tests.flows.asynchronous_records import PROMPTS, RESPONSES, check, commits, dispatch_places
from tests.flows.conftest import Finished, Launcher
from tests.flows.slow_guess import is_slow

pytestmark = [pytest.mark.flow, pytest.mark.engine]

GAME = preset_values("tiny-agent")["environments"]["guess"]
SLOW_GUESS = {
    "kind": "custom",
    "path": str(Path(__file__).with_name("slow_guess.py")) + ":SlowGuess",
    "kwargs": GAME,
    "max_turns": GAME["max_turns"],
}
SETTINGS = (
    f"environments.guess={json.dumps(SLOW_GUESS)}",
    "sampling.max_response_tokens=32",
    "deadlines.start_s=1500",
)


def rows_of(run: Path, step: int) -> list[ResponseRow]:
    return list(Journal(Store.open(str(run))).read(step))


def trained(rows: Iterable[ResponseRow]) -> list[ResponseRow]:
    return [row for row in rows if row.fate is Fate.TRAINED]


def has_failed(row: ResponseRow) -> bool:
    """Whether its environment did, as may happen where processes starve; it is replaced then."""
    episode = row.response.generated.episode
    return episode is not None and episode.ending is not None and episode.ending.is_failure


def check_group_seeds(rows: Iterable[ResponseRow]) -> None:
    """All episodes of a prompt have its seed, and no two prompts have the same."""
    seeds = {(row.prompt.prompt_id, row.prompt.episode_seed) for row in rows}
    assert len(seeds) == len({prompt for prompt, _ in seeds}) == len({seed for _, seed in seeds})


# --- tail batching -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tail(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Path]:
    """A short round of twice the prompts and half as many members more, and the long one of what
    it puts off."""
    root = tmp_path_factory.mktemp("runs")
    settings = (
        'run_name="tail"',
        "scheduling.kind=tail_batching",
        "scheduling.prompt_overprovision=2",
        "scheduling.response_overprovision=1.5",
    )
    finished = launcher.run(root, *SETTINGS, *settings, preset="tiny-agent")
    return finished, root / "tail"


def test_groups_with_long_episodes_go_to_the_queue_and_are_trained_in_a_long_round(
    tail: tuple[Finished, Path],
) -> None:
    finished, run = tail
    assert finished.code == 0, finished.err
    assert [commit["kind"] for commit in commits(run)] == ["short", "long"]
    short, long = rows_of(run, 1), rows_of(run, 2)
    slow = {row.prompt.prompt_id for row in short if is_slow(row.prompt.episode_seed or 0)}
    assert 0 < len(slow) <= PROMPTS, "else they could not all be put off"
    put_off = {row.prompt.prompt_id for row in long}
    assert slow <= put_off
    assert put_off.isdisjoint(row.prompt.prompt_id for row in trained(short))
    assert {row.fate for row in long if not has_failed(row)} == {Fate.TRAINED}


def test_no_episode_that_was_put_off_is_lost(tail: tuple[Finished, Path]) -> None:
    """Every prompt is trained once, by as many episodes as any other, of one seed and the version
    of its round."""
    _, run = tail
    rounds = {step: rows_of(run, step) for step in (1, 2)}
    counts = Counter(row.prompt.prompt_id for rows in rounds.values() for row in trained(rows))
    assert set(counts) == {row.prompt.prompt_id for row in rounds[1]}
    assert set(counts.values()) == {RESPONSES}
    check_group_seeds(row for rows in rounds.values() for row in rows)
    for step, rows in rounds.items():
        versions = [span.version for row in rows for span in row.response.generated.versions]
        assert set(versions) == {step - 1}
    queue = commits(run)[-1]["queue"]
    assert (queue["queue"], queue["num_drawn"], queue["num_trained"]) == ([], 8, 8)


def test_surplus_episodes_are_stopped_and_come_back(tail: tuple[Finished, Path]) -> None:
    _, run = tail
    short = rows_of(run, 1)
    assert len(short) == 2 * PROMPTS * 6, "what was launched is recorded, whatever became of it"
    stopped = [row for row in short if row.fate is Fate.ABORTED]
    others = Counter(row.fate for row in short)
    assert set(others) <= {Fate.TRAINED, Fate.ABORTED, Fate.DISCARDED}
    assert others[Fate.TRAINED] == PROMPTS * RESPONSES
    for row in stopped:
        assert row.response.generated.episode is not None
        assert row.response.generated.episode.ending is None
    figures = commits(run)[0]["metrics"]
    assert figures["episode/stopped"] == len(stopped) > 0
    assert figures["episode/trained_turns_share"] > 0
    assert [commit["metrics"]["engine/unclaimed_responses"] for commit in commits(run)] == [0, 0]


# --- asynchrony --------------------------------------------------------------------------------

NUM_STEPS = 3


APART, IN_TURN = 'cluster.roles="rollout: 0, learner: 1"', "scheduling.at_update=pause"


@pytest.fixture(scope="module", params=[APART, IN_TURN], ids=["apart", "in-turn"])
def overlapped(
    request: pytest.FixtureRequest,
    launcher: Launcher,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Finished, Path]:
    """Generation at most a step ahead: on one core, training on the other, or both on both in
    turn."""
    root = tmp_path_factory.mktemp("runs")
    settings = (
        'run_name="overlapped"',
        f"num_steps={NUM_STEPS}",
        "scheduling.kind=asynchronous",
        request.param,
    )
    finished = launcher.run(root, *SETTINGS, *settings, preset="tiny-agent")
    return finished, root / "overlapped"


def test_no_token_of_an_episode_is_older_than_the_bound(overlapped: tuple[Finished, Path]) -> None:
    finished, run = overlapped
    assert finished.code == 0, finished.err
    check(run, async_ratio=1.0, num_steps=NUM_STEPS)
    lags = [commit["metrics"]["lag/mean_versions"] for commit in commits(run)]
    assert lags[0] == 0
    assert max(lags) > 0


def test_slow_groups_let_others_go_first(overlapped: tuple[Finished, Path]) -> None:
    """Of the prompts that are dispatched with the first step as many are fast as it trains."""
    _, run = overlapped
    rounds = {step: rows_of(run, step) for step in range(1, NUM_STEPS + 1)}
    check_group_seeds(row for rows in rounds.values() for row in rows)
    places = dispatch_places(run)
    slow = {
        row.prompt.prompt_id
        for rows in rounds.values()
        for row in rows
        if is_slow(row.prompt.episode_seed or 0) and places[row.prompt.prompt_id] < 2 * PROMPTS
    }
    assert 0 < len(slow) <= PROMPTS
    assert slow.isdisjoint(row.prompt.prompt_id for row in trained(rounds[1]))
