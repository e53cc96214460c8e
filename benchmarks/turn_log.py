"""What does it cost an engine's process to write an episode down after every turn?

    python -m benchmarks.turn_log --pairs 9
    python -m benchmarks.turn_log --episodes 64 --turns 8 --tokens 40 --state-bytes 600

Rounds of simulated episodes are played with the log and without, in pairs; which goes first
alternates. Episodes are played as in a run (`EpisodeReplica`); the engine takes `--turn-ms` for a
turn and computes nothing, environments answer at once. So wall seconds say what the log delays, and
processor seconds what it takes where nothing else does. Then: microseconds of the event loop for
each line, and what share of such a round that is. Pickling the state, printed last, is up to the
process of the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from artifacts.episodes import Episode, Snapshot, Turn
from artifacts.records import Generated, Request, VersionSpan
from artifacts.turn_log import TurnLog, read_turns
from benchmarks.episode_rounds import BRIDGE, DOMAIN, HEAD, ActionWriter, Machine
from benchmarks.slow_environments import OBSERVATION, Conditions, SlowHosts
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.environments.base import EnvironmentSettings
from tasks.environments.episode_config import EpisodeConfig
from tasks.environments.episode_replica import EpisodeReplica
from tasks.environments.games.guess import GuessConfig

MODEL_LEN = 100_000
KINDS = ("without", "with")


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a round."""

    wall_s: float
    processor_s: float  # of this process


class StatefulHosts(SlowHosts):
    """Environments that answer at once and have a state of so many bytes."""

    def __init__(self, num_turns: int, state_bytes: int) -> None:
        turns = LengthModel(median_tokens=num_turns, sigma=0.0)
        super().__init__(Conditions(mean_s=0.0, deviation_s=0.0, turns=turns, most_turns=num_turns))
        self._state = bytes(state_bytes)

    def snapshot(self, episode_id: str) -> bytes:
        return self._state


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each pair and figure."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.tokens <= len(OBSERVATION):
        parser.error(f"--tokens must be > {len(OBSERVATION)}, which are given, got {given.tokens}")
    with tempfile.TemporaryDirectory() as folder:
        _compare_rounds(given, Path(folder) / "rounds")
        _measure_lines(given, Path(folder) / "lines")
    print(f"the guessing game pickles in {_pickle_us():.0f} us")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5, help="how often to play both rounds")
    parser.add_argument("--episodes", type=int, default=64, help="at a time, all of a round")
    parser.add_argument("--turns", type=int, default=8, help="of an episode")
    parser.add_argument("--tokens", type=int, default=40, help="of a turn; 20 of them are given")
    parser.add_argument("--state-bytes", type=int, default=600, help="of an environment, pickled")
    parser.add_argument("--turn-ms", type=float, default=400.0, help="that the engine takes")
    return parser


# --- rounds --------------------------------------------------------------------------------------


def _compare_rounds(given: argparse.Namespace, folder: Path) -> None:
    asyncio.run(_round(given, None))  # warms up
    rounds: dict[str, list[Took]] = {kind: [] for kind in KINDS}
    for pair in range(given.pairs):
        for kind in KINDS if pair % 2 == 0 else KINDS[::-1]:
            log = TurnLog(folder / str(pair), "engine-0") if kind == "with" else None
            rounds[kind].append(asyncio.run(_round(given, log)))
        assert len(read_turns(folder / str(pair), lambda attempt: True)) == given.episodes
        print(f"pair={pair} {_ratios({kind: took[-1:] for kind, took in rounds.items()})}")
    print(f"median {_ratios(rounds)}")


def _ratios(rounds: dict[str, list[Took]]) -> str:
    """Medians of both kinds and of the ratio within a pair, on both clocks; and of the processor
    seconds that the log takes, as a share of a round's wall seconds."""
    without, logged = (rounds[kind] for kind in KINDS)
    wall = _ratio([took.wall_s for took in without], [took.wall_s for took in logged])
    processor = _ratio(
        [took.processor_s for took in without], [took.processor_s for took in logged]
    )
    share = median(
        (ours.processor_s - theirs.processor_s) / theirs.wall_s
        for theirs, ours in zip(without, logged, strict=True)
    )
    return f"wall_s: {wall}, processor_s: {processor}, log's share of the round={share:.2%}"


def _ratio(without: Sequence[float], logged: Sequence[float]) -> str:
    ratio = median(ours / theirs for theirs, ours in zip(without, logged, strict=True))
    return f"without={median(without):.4f} with={median(logged):.4f} ratio={ratio:.4f}"


async def _round(given: argparse.Namespace, log: TurnLog | None) -> Took:
    """All episodes at a time, to their ends."""
    engine = _engine(given, log)
    requests = [_request(index, given) for index in range(given.episodes)]
    began_s, began_processor_s = time.perf_counter(), time.process_time()
    await engine.submit(requests)
    num_over = 0
    while num_over < len(requests):
        num_over += len(await engine.collect(60.0))
    took = Took(time.perf_counter() - began_s, time.process_time() - began_processor_s)
    engine.close()
    return took


def _engine(given: argparse.Namespace, log: TurnLog | None) -> EpisodeReplica:
    num_sampled = given.tokens - len(OBSERVATION)
    machine = Machine(median_tokens=num_sampled, sigma=0.0, most_tokens=num_sampled)
    config = SimulatedEngineConfig(
        max_model_len=MODEL_LEN,
        max_batch=given.episodes,
        step_s=given.turn_ms / 1000 / num_sampled,
        step_s_per_sequence=0.0,
        prefill_s_per_token=0.0,
        kv_capacity_tokens=100_000_000,
    )
    return EpisodeReplica(
        SimulatedEngine("engine-0", config, writer=ActionWriter(machine, seed=0)),
        StatefulHosts(given.turns, given.state_bytes),
        environments={DOMAIN: EnvironmentSettings(max_turns=given.turns)},
        bridges={DOMAIN: BRIDGE},
        config=EpisodeConfig(max_turn_tokens=num_sampled, episode_s=1e6),
        max_model_len=MODEL_LEN,
        clock=asyncio.get_running_loop().time,
        log=log,
    )


def _request(index: int, given: argparse.Namespace) -> Request:
    return Request(
        prompt_id="0/1",
        index=index,
        prompt_tokens=HEAD,
        max_new_tokens=2 * given.turns * given.tokens,
        temperature=1.0,
        top_p=1.0,
        seed=index,
        attempt=1001,
        environment=DOMAIN,
        episode_seed=1,
    )


# --- lines ---------------------------------------------------------------------------------------


def _measure_lines(given: argparse.Namespace, folder: Path) -> None:
    snapshot = Snapshot(state=bytes(given.state_bytes), observation="Higher.")
    states = [_episode(number + 1, given.tokens, snapshot) for number in range(given.turns)]
    log = TurnLog(folder, "engine-0")
    line_us = _write(log, states, given.episodes)
    log.close()
    num_bytes = sum(file.stat().st_size for file in folder.rglob("*.jsonl"))
    began_s = time.process_time()
    assert len(read_turns(folder, lambda attempt: True)) == given.episodes
    read_s = time.process_time() - began_s
    num_lines = given.episodes * given.turns
    share = line_us * given.episodes / (given.turn_ms * 1000)
    print(f"a line: {line_us:.0f} us, {num_bytes / num_lines:.0f} bytes")
    print(f"of a rollout of {given.episodes} episodes at a time: {share:.2%}")
    print(f"all {num_lines} lines read back in {read_s * 1000:.0f} ms of a core")


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
