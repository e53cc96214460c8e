"""What does it cost an engine's process to write an episode down after every turn?

    python -m benchmarks.turn_log --episodes 64 --turns 8 --tokens 40 --state-bytes 600

Microseconds of the event loop for each line, as `TurnLog` writes it and as an environment's process
pickles its state; and what share of a rollout it is when a turn takes an engine as long as
`--turn-ms`, with so many of them at a time.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from artifacts.episodes import Episode, Snapshot, Turn
from artifacts.records import Generated, VersionSpan
from artifacts.turn_log import TurnLog, read_turns
from tasks.environments.games.guess import GuessConfig


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=40, help="of a turn, given and sampled")
    parser.add_argument("--state-bytes", type=int, default=600)
    parser.add_argument("--turn-ms", type=float, default=400.0)
    given = parser.parse_args(arguments)
    snapshot = Snapshot(state=bytes(given.state_bytes), observation="Higher.")
    states = [_episode(number + 1, given.tokens, snapshot) for number in range(given.turns)]
    with tempfile.TemporaryDirectory() as folder:
        log = TurnLog(Path(folder), "engine-0")
        line_us = _write(log, states, given.episodes)
        log.close()
        num_bytes = sum(file.stat().st_size for file in Path(folder).rglob("*.jsonl"))
        began_s = time.process_time()
        assert len(read_turns(Path(folder), lambda attempt: True)) == given.episodes
        read_s = time.process_time() - began_s
    num_lines = given.episodes * given.turns
    share = line_us * given.episodes / (given.turn_ms * 1000)
    print(f"a line: {line_us:.0f} us, {num_bytes / num_lines:.0f} bytes")
    print(f"of a rollout of {given.episodes} episodes at a time: {share:.2%}")
    print(f"all {num_lines} lines read back in {read_s * 1000:.0f} ms of a core")
    print(f"the guessing game pickles in {_pickle_us():.0f} us")


def _write(log: TurnLog, states: Sequence[Generated], num_episodes: int) -> float:
    """Microseconds of processor time a line."""
    began_s = time.process_time()
    for num_written, state in enumerate(states):
        for index in range(num_episodes):
            log.write(replace(state, index=index), num_written)
    return (time.process_time() - began_s) / (len(states) * num_episodes) * 1e6


def _pickle_us() -> float:
    game = GuessConfig().build()
    game.reset(1)
    began_s = time.process_time()
    for _ in range(1000):
        pickle.dumps(game)
    return (time.process_time() - began_s) * 1000


def _episode(num_turns: int, num_tokens: int, snapshot: Snapshot) -> Generated:
    turn = Turn(
        num_given=num_tokens // 2,
        num_sampled=num_tokens - num_tokens // 2,
        observation="Higher.",
        action="I guess 12",
        reward=0.0,
        asked_s=time.time(),
        acted_s=time.time(),
        answered_s=time.time(),
        info=(("action", "consistent"),),
    )
    total = num_turns * num_tokens
    return Generated(
        prompt_id="0/1",
        index=0,
        token_ids=(31_000,) * total,
        logprobs=(-1.2345678901234567,) * total,
        versions=(VersionSpan(version=3, num_tokens=total),),
        finish_reason="aborted",
        text="",
        engine="engine-0",
        submitted_s=time.time(),
        first_token_s=time.time(),
        finished_s=time.time(),
        attempt=1001,
        episode=Episode(turns=(turn,) * num_turns, ending=None, snapshot=snapshot),
    )


if __name__ == "__main__":
    main()
