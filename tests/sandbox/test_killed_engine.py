"""Kill -9 of an engine's process in the middle of its episodes: what it had written is all that
another one needs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from playing_engine import NUM_EPISODES, play

from artifacts.attempt_log import read_turns
from artifacts.records import Generated


def written(folder: Path) -> dict[str, Generated]:
    return read_turns(folder, lambda attempt: True)


def num_turns(found: dict[str, Generated]) -> int:
    return sum(len(each.episode.turns) for each in found.values() if each.episode is not None)


async def test_episodes_of_a_killed_process_go_on_in_another_from_their_last_turn(
    tmp_path: Path,
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("playing_engine.py")), str(tmp_path)]
    engine = subprocess.Popen(command)
    ends = time.monotonic() + 300
    while num_turns(written(tmp_path)) < NUM_EPISODES:
        assert engine.poll() is None, "it ended by itself"
        assert time.monotonic() < ends, "it plays nothing"
        time.sleep(0.02)
    engine.kill()
    engine.wait()
    found = written(tmp_path)
    again = await play(tmp_path, found, "engine-1")
    whole = await play(tmp_path / "undisturbed", {}, "engine-0")
    assert len(again) == NUM_EPISODES
    num_resumed = 0
    for name, generated in again.items():
        assert (generated.token_ids, generated.logprobs) == (
            whole[name].token_ids,
            whole[name].logprobs,
        )
        assert generated.episode is not None
        assert generated.episode.num_replayed == generated.episode.num_restarted == 0
        known = found.get(name)
        if known is None:
            continue
        assert known.episode is not None
        turns = known.episode.turns
        assert generated.episode.turns[: len(turns)] == turns  # with the times of their playing
        num_resumed += generated.episode.num_resumed
    assert num_resumed == sum(
        each.episode.ending is None for each in found.values() if each.episode is not None
    )
    assert num_resumed
