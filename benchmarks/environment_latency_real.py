"""What slow and failing environments cost a step by the clock on the wall: the schedules of
`environment_latency` with real environments in real processes and the tiny engine.

    python -m benchmarks.environment_latency_real --scale 0.5

    driver, policy ─▶ EpisodeReplica ─┬─▶ vLLM, the player of the preset tiny-agent
                                      └─▶ HostPool ─▶ the guessing game, `delayed`: it sleeps

A step trains 8 groups of 8 episodes on one engine. A reset or a step of an environment takes a
normal time, mean 0.5 s, deviation 0.5 s, cut at 0; one in twenty takes ten times as long. One in
two hundred never returns and is given up after 20 s, and one in two hundred crashes: with about
four calls an episode that is 2 % of the episodes each. `--scale` multiplies all of these times.
What befalls a call is a function of seed, turn and actions, so that all schedules play the same
episodes; those of a group, which share their seed, share what befalls their reset.

Every line is played in the same process, one after the other, with the same prompts and the same
weights, which are loaded anew as the version of every step; training takes no time. An episode that
was stopped or failed is played again afterwards, without delays: how many turns it would have had.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from artifacts.new_tokens import parted
from artifacts.records import Generated, Prompt, Request, WeightsRef
from artifacts.weights import read_weights, write_weights
from benchmarks.environment_latency import COLUMNS, LINES, LOCK_STEP, Line, told
from benchmarks.episode_rounds import EpisodeFeed, Outcome, PlayedRun, outcome
from benchmarks.slow_environments import LockStep, Played
from benchmarks.watched_hosts import WatchedHosts
from flows.config.run_config import RunConfig
from flows.experiments.ablation_figures import markdown_table
from tasks.engines.base import Replica
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.environments.base import EnvironmentHosts, EnvironmentSettings
from tasks.environments.delayed import DelayedConfig
from tasks.environments.episode_replica import EpisodeReplica
from tasks.environments.hosts.direct import DirectHosts
from tasks.environments.hosts.pool import HostPool
from tasks.environments.player import bridge_of
from tasks.environments.processes.config import HostConfig
from tasks.learner.models import resolve_model
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.seeds import derive_seed
from tasks.simulation.overlapped_rounds import OverlappedRun, SimulatedLearner, play_overlapped

DOMAIN = "guess"
BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=8)
STEP_EPISODES = BATCH.prompts_per_step * BATCH.responses_per_prompt
NUM_STEPS = 5  # of tail batching: four short rounds and the long one of what they put off
MEAN_S, DEVIATION_S, LIMIT_S = 0.5, 0.5, 20.0
OVERLAPPED = Line(name="asynchronous, ratio 1", policy=AsynchronousConfig(async_ratio=1.0))
WANTED = ("in lock step", "own pace", "groups, given up", "+ tail batching")
REAL_LINES = (*(line for line in LINES if line.name.endswith(WANTED)), OVERLAPPED)


class NotedReplica(EpisodeReplica):
    """Keeps what it was asked."""

    def note(self, asked: dict[str, Request]) -> NotedReplica:
        """By response id, from now on."""
        self._asked = asked
        return self

    async def submit(self, requests: Sequence[Request]) -> None:
        self._asked |= {request.response_id: request for request in requests}
        await super().submit(requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all lines are played with."""

    config: RunConfig  # the preset
    engine: Replica  # the real one
    model_path: str
    versions: Path  # folder of weight files
    scale: float  # of all times of environments
    num_steps: int

    @property
    def delayed(self) -> DelayedConfig:
        return DelayedConfig.model_validate(
            {
                "environment": self.config.environments[DOMAIN].model_dump(),
                "mean_s": MEAN_S * self.scale,
                "deviation_s": DEVIATION_S * self.scale,
                "distribution": "normal",
                "slow_turns": 0.05,
                "crash_turns": 0.005,
                "hang_turns": 0.005,
            }
        )

    @property
    def hosts(self) -> HostConfig:
        limit_s = LIMIT_S * self.scale
        return HostConfig(num_hosts=4 * STEP_EPISODES, step_s=limit_s, reset_s=limit_s)

    def weights(self, version: int) -> WeightsRef:
        """Those of the model, under this version."""
        tensors = read_weights(Path(self.model_path) / "model.safetensors")
        return write_weights(tensors, self.versions / f"{version}.safetensors", version)

    def replica(
        self, hosts: EnvironmentHosts, settings: EnvironmentSettings, asked: dict[str, Request]
    ) -> EpisodeReplica:
        return NotedReplica(
            self.engine,
            hosts,
            environments={DOMAIN: settings},
            bridges={DOMAIN: bridge_of(self.model_path, settings.head())},
            config=self.config.episodes,
            max_model_len=self.config.engine.max_model_len,
        ).note(asked)

    def prompts(self, seed: int) -> Callable[[Iterable[PromptRef]], dict[str, Prompt]]:
        head = bridge_of(self.model_path, self.delayed.head()).head

        def ask(refs: Iterable[PromptRef]) -> dict[str, Prompt]:
            return {
                ref.prompt_id: Prompt(
                    prompt_id=ref.prompt_id,
                    domain=DOMAIN,
                    token_ids=head,
                    gold="",
                    text="",
                    episode_seed=derive_seed(seed, "episode", ref.prompt_id),
                )
                for ref in refs
            }

        return ask


async def play_line(bench: Bench, line: Line, seed: int) -> tuple[Outcome, float]:
    """The line in figures, and the mean seconds that an episode waited for the model in a turn."""
    await bench.engine.load_weights(bench.weights(0), ())
    pool = HostPool(bench.hosts, (bench.delayed,))
    await pool.warm()
    hosts = WatchedHosts(pool, LockStep() if line.is_lock_step else None)
    asked: dict[str, Request] = {}
    engines = [bench.replica(hosts, bench.delayed, asked)]
    run = OverlappedRun(
        policy=line.policy,
        batch=BATCH,
        num_steps=bench.num_steps,
        domains=(DOMAIN,) * 10_000,
        engines=engines,
        learner=SimulatedLearner(engines, train_s=0.0, weights=bench.weights),
        feed=EpisodeFeed,
        max_response_tokens=bench.config.sampling.max_response_tokens,
        ask=bench.prompts(seed),
        seed=seed,
    )
    began_s = time.monotonic()
    results = [played.result async for played in play_overlapped(run)]
    seconds = time.monotonic() - began_s
    pool.close()
    said = [generated for result in results for generated in result.generated]
    await count_turns(bench, hosts.played, said, asked)
    found = outcome(PlayedRun(results=results, episodes=hosts.played, seconds=seconds))
    return found, fmean(model_s(said))


async def count_turns(
    bench: Bench,
    played: Sequence[Played],
    said: Sequence[Generated],
    asked: dict[str, Request],
) -> None:
    """Note of every episode how many turns it has if nothing fails or stops it."""
    whole = {
        generated.response_id: len(generated.episode.turns)
        for generated in said
        if generated.episode is not None and not has_broken_off(generated)
    }
    left = {each.episode_id for each in played} - whole.keys()
    settings = bench.config.environments[DOMAIN]
    replica = bench.replica(DirectHosts(), settings, {})
    await replica.submit([replace(asked[name], attempt=0) for name in sorted(left)])
    while left - whole.keys():
        for generated in parted(await replica.collect(5.0))[0]:
            assert generated.episode is not None
            whole[generated.response_id] = len(generated.episode.turns)
    for each in played:
        each.num_turns = whole[each.episode_id]


def has_broken_off(generated: Generated) -> bool:
    """Whether the episode was stopped, or its environment failed."""
    ending = generated.episode.ending if generated.episode else None
    return ending is None or ending.is_failure


def model_s(said: Sequence[Generated]) -> list[float]:
    """Of every turn, the seconds from the question to the action."""
    turns = (turn for each in said if each.episode is not None for turn in each.episode.turns)
    return [turn.acted_s - turn.asked_s for turn in turns]


def row(line: Line, found: Sequence[Outcome], lock_step: Sequence[Outcome]) -> tuple[str, ...]:
    seconds = [one.seconds * STEP_EPISODES / one.trained for one in found]
    before = [one.seconds * STEP_EPISODES / one.trained for one in lock_step]
    return (
        line.name,
        told(seconds),
        told([first / second for first, second in zip(before, seconds, strict=True)], "{:.2f}"),
        told([one.trained / one.seconds for one in found]),
        told([one.wasted_s / one.busy_s for one in found], "{:.0%}"),
        told([one.turn_bias for one in found], "{:+.1%}"),
    )


async def measure(bench: Bench, num_seeds: int) -> None:
    """Every line with every seed, and the table."""
    runs: dict[Line, list[Outcome]] = {line: [] for line in REAL_LINES}
    for seed in range(num_seeds):
        for line in REAL_LINES:
            found, turn_s = await play_line(bench, line, seed)
            runs[line].append(found)
            fates = " ".join(f"{fate}={count}" for fate, count in found.fates.items())
            print(
                f"seed={seed} line={line.name!r} seconds={found.seconds:.1f}"
                f" trained={found.trained} {fates} model_s_per_turn={turn_s:.2f}"
                f" load={os.getloadavg()[0]:.1f}",
                flush=True,
            )
    rows = [row(line, found, runs[LOCK_STEP]) for line, found in runs.items()]
    print(markdown_table(("", *COLUMNS), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of all times of environments")
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    config = RunConfig(preset="tiny-agent")  # type: ignore[call-arg]  # the rest is the preset's
    model_path = str(resolve_model(config.model, Path(".cache/models")))
    assert isinstance(config.engine, VllmEngineConfig)
    engine = VllmEngine(
        config=config.engine, model_path=model_path, name="engine-0", cpu_ids=None, seed=0
    )
    engine.start()
    try:
        with tempfile.TemporaryDirectory() as versions:
            bench = Bench(
                config=config,
                engine=engine,
                model_path=model_path,
                versions=Path(versions),
                scale=given.scale,
                num_steps=given.steps,
            )
            asyncio.run(measure(bench, given.seeds))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
