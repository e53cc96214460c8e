"""Kill -9 in the middle of episodes, of the flow and of an engine: they go on from their last
finished turn, and no turn is lost or doubled.

Engines are simulated, environments are slow and step in processes of their own. That a turn was not
played again is seen from its times.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from artifacts import layout
from artifacts.attempt_log import read_turns
from artifacts.commit import read_commits
from artifacts.episodes import Episode
from artifacts.journal import Journal
from artifacts.records import Fate, Generated
from artifacts.store import Store
from tests.flows.conftest import (
    ENDS_WITHIN_S,
    Launcher,
    Settings,
    booked_as_trained,
    of_both_kinds,
    worker_of,
)
from tests.flows.train_origin import Train

pytestmark = [pytest.mark.flow, pytest.mark.timeout(1800), of_both_kinds]

GAME = '{"kind": "guess", "style": "terse", "largest": 10, "max_turns": 6}'
SLOW_GAMES = (
    "engine.kind=simulated",
    "engine.max_model_len=96",
    "engine.profile.lengths.median_tokens=3",
    'environments.guess={"kind": "custom", "path": "research.kills.delayed:delayed",'
    f' "kwargs": {{"environment": {GAME}, "mean_s": 0.7}}}}',
    "sampling.max_response_tokens=64",
    "stream_trainer.enabled=false",
)
NUM_EPISODES = 16
FIRST_ATTEMPT = 1001  # at step 1


def start(launcher: Launcher, run: Path, trained: Settings = (), resume: str = "") -> Train:
    settings = () if resume else (f'run_name="{run.name}"', *SLOW_GAMES, *trained)
    return launcher.start(
        run.parent, *settings, preset="tiny-sync" if resume else "tiny-agent", resume=resume
    )


def played(run: Path) -> dict[str, Generated]:
    """What engines have written down of the episodes of step 1."""
    return read_turns(run / layout.TURNS, lambda attempt: attempt == FIRST_ATTEMPT)


def in_the_middle(run: Path, process: Train) -> None:
    """Until every episode of step 1 is under way and some have two turns; none is over."""
    ends = time.monotonic() + ENDS_WITHIN_S
    while len(played(run)) < NUM_EPISODES // 2:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < ends, "no episode has got on"
        time.sleep(0.05)


def episode_of(generated: Generated) -> Episode:
    assert generated.episode is not None
    return generated.episode


def check_nothing_is_lost(run: Path, before: dict[str, Generated]) -> None:
    """Every episode of step 1 is trained once, and begins with the turns that it had."""
    store = Store.open(str(run))
    rows = Journal(store).read(1)
    whole = {row.response.generated.response_id: row.response.generated for row in rows}
    assert len(rows) == len(whole) == NUM_EPISODES
    assert {row.fate for row in rows} == {Fate.TRAINED}
    for name, known in before.items():
        turns = episode_of(known).turns
        assert episode_of(whole[name]).turns[: len(turns)] == turns
        assert whole[name].token_ids[: len(known.token_ids)] == known.token_ids
        assert whole[name].logprobs[: len(known.logprobs)] == known.logprobs
    unfinished = [name for name, known in before.items() if episode_of(known).ending is None]
    assert unfinished
    for name in unfinished:
        assert episode_of(whole[name]).num_resumed == 1
    first = read_commits(store)[0].metrics
    assert first["episode/resumed"] >= len(unfinished)
    assert first["episode/replayed_turns"] == first["episode/restarted"] == 0
    assert booked_as_trained(first) == sum(each.num_sampled for each in whole.values())
    assert first["ledger/aborted_tokens"] == first["ledger/stale_tokens"] == 0
    assert not list((run / layout.TURNS).glob("*"))


def test_episodes_of_a_killed_flow_go_on_from_their_last_finished_turn(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    run = tmp_path / "killed-flow"
    process = start(launcher, run, trained)
    in_the_middle(run, process)
    before = played(run)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    again = start(launcher, run, resume=run.name)
    _, err = again.communicate(timeout=ENDS_WITHIN_S)
    assert again.returncode == 0, err
    check_nothing_is_lost(run, before)


def test_episodes_of_a_killed_engine_go_on_in_another(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    run = tmp_path / "killed-engine"
    process = start(launcher, run, trained)
    in_the_middle(run, process)
    before = {name: known for name, known in played(run).items() if known.engine == "engine-0"}
    worker_of(process, "engine-0").send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    check_nothing_is_lost(run, before)
