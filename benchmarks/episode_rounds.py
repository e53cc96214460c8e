"""Whole runs of episodes over slow environments, on simulated engines and a virtual clock, and what
became of every episode.

    driver, policy (the real ones) ─▶ EpisodeReplica (the real one) ─┬─▶ simulated engine: turns
                                                                     └─▶ `slow_environments`

Actions and observations say nothing; verdicts are the real ones of the reward `episode`. Training
is a time. Leaves out what is compared.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from artifacts.records import Generated, Prompt, Request, Score
from benchmarks.slow_environments import Conditions, LockStep, Played, SlowHosts
from tasks.engines.mailbox import Mailbox
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.environments.base import EnvironmentSettings
from tasks.environments.bridge import Bridge, Opening
from tasks.environments.episode_config import EpisodeConfig
from tasks.environments.episode_replica import EpisodeReplica
from tasks.rewards.episode import EpisodeReward, EpisodeRewardConfig
from tasks.rounds.records import RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.seeds import derive_seed
from tasks.simulation.overlapped_rounds import OverlappedRun, SimulatedLearner, play_overlapped

DOMAIN, BLANK, END = "game", 1, 2
HEAD = (BLANK,) * 200
LONGEST_TOKENS, MODEL_LEN = 16_384, 32_768
ENGINE = SimulatedEngineConfig(
    max_model_len=MODEL_LEN,
    step_s=0.008,
    step_s_per_sequence=0.0001,
    prefill_s_per_token=0.0,  # histories are cached
    kv_capacity_tokens=100_000_000,
)
OPENING = Opening(before=(), lead="", trail="", after=())
BRIDGE = Bridge(
    HEAD,
    frozenset({END}),
    END,
    OPENING,
    OPENING,
    lambda text: (BLANK,) * len(text),
    lambda token_ids: "",
)


class Fate(StrEnum):
    """What became of an episode that was begun."""

    TRAINED = "trained"
    FAILED = "failed"  # its environment did; another one took its place
    PUT_OFF = "put off"  # with its group, to be played again if the policy plays it again
    SURPLUS = "surplus"  # its group had enough without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The engines and their model."""

    num_engines: int = 8
    median_tokens: float = 64.0  # of an action; log-normal
    sigma: float = 0.5
    most_tokens: int = 128
    engine: SimulatedEngineConfig = ENGINE


MACHINE = Machine()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRun:
    """What is played."""

    policy: Policy
    conditions: Conditions
    batch: BatchConfig
    num_steps: int
    is_lock_step: bool = False  # whether all episodes take their turns together
    train_s: float = 0.0  # of a step
    machine: Machine = MACHINE
    seed: int = 0  # of latencies, failures, turns and lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run in figures."""

    seconds: float  # virtual, of the whole run
    trained: int  # episodes
    fates: Counter[Fate]  # of all that were begun; one that is begun again counts again
    busy_s: float  # of all environments, in calls
    wasted_s: float  # of that, in episodes that were not trained
    trained_turns: float  # mean of the trained episodes
    started_turns: float  # mean of all different episodes that were begun, had they ended

    @property
    def turn_bias(self) -> float:
        """How much longer trained episodes are than those that were begun, as a fraction."""
        return self.trained_turns / self.started_turns - 1


@dataclass(frozen=True, slots=True)
class ActionWriter:
    """Actions of log-normal lengths, by the request's seed and the place in its episode."""

    machine: Machine
    seed: int

    def num_tokens(self, request: Request, noise: int) -> int:
        draws = random.Random(derive_seed(self.seed, noise, len(request.prompt_tokens)))
        median, sigma = self.machine.median_tokens, self.machine.sigma
        return max(1, round(median * math.exp(sigma * draws.gauss(0.0, 1.0))))

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        whole = (BLANK,) * (self.num_tokens(request, noise) - 1) + (END,)
        return whole[:num_tokens]

    def text(self, tokens: tuple[int, ...]) -> str:
        return ""


class EpisodeFeed:
    """Scores at once, by the reward `episode`."""

    def __init__(self) -> None:
        self._reward = EpisodeReward(EpisodeRewardConfig())
        self._scores = Mailbox[Score]()

    async def publish(self, generated: Sequence[Generated]) -> None:
        for response in generated:
            prompt = _prompt(response.prompt_id, seed=0)
            self._scores.put(self._reward.score(prompt, response))

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRun:
    """A run as it was played."""

    results: Sequence[RoundResult]  # of its rounds
    episodes: Sequence[Played]  # all that were begun, in this order
    seconds: float  # virtual


def play(run: EpisodeRun) -> Outcome:
    """The run in figures."""
    return outcome(run_virtual(simulate(run)))


async def simulate(run: EpisodeRun) -> PlayedRun:
    """The run, on the clock of its event loop."""
    turns = run.conditions.turns.model_copy(update={"seed": run.seed})
    conditions = replace(run.conditions, turns=turns)
    hosts = SlowHosts(conditions, LockStep() if run.is_lock_step else None)
    engines = [_engine(run, hosts, f"engine-{place}") for place in range(run.machine.num_engines)]

    def ask(refs: Iterable[PromptRef]) -> dict[str, Prompt]:
        return {ref.prompt_id: _prompt(ref.prompt_id, run.seed) for ref in refs}

    overlapped = OverlappedRun(
        policy=run.policy,
        batch=run.batch,
        num_steps=run.num_steps,
        domains=(DOMAIN,) * 100_000,
        engines=engines,
        learner=SimulatedLearner(engines, run.train_s),
        feed=EpisodeFeed,
        max_response_tokens=LONGEST_TOKENS,
        ask=ask,
        seed=run.seed,
    )
    results = [played.result async for played in play_overlapped(overlapped)]
    seconds = asyncio.get_running_loop().time()
    return PlayedRun(results=results, episodes=hosts.played, seconds=seconds)


def fates_of(result: RoundResult) -> list[tuple[str, Fate]]:
    """What became of each episode of a round, by response id."""
    trained = {
        response.generated.response_id for group in result.groups for response in group.responses
    }
    return [
        (generated.response_id, _fate(generated, trained, result.deferred))
        for generated in result.generated
    ]


def outcome(run: PlayedRun) -> Outcome:
    """What a run gained and cost. An episode that was begun more than once is trained as it was
    played the last time."""
    fates = [fate for result in run.results for fate in fates_of(result)]
    assert Counter(name for name, _ in fates) == Counter(each.episode_id for each in run.episodes)
    last = {each.episode_id: each for each in run.episodes}
    trained = {last[name] for name, fate in fates if fate is Fate.TRAINED}
    return Outcome(
        seconds=run.seconds,
        trained=len(trained),
        fates=Counter(fate for _, fate in fates),
        busy_s=sum(each.busy_s for each in run.episodes),
        wasted_s=sum(each.busy_s for each in run.episodes if each not in trained),
        trained_turns=_mean_turns(trained),
        started_turns=_mean_turns(last.values()),
    )


def _fate(generated: Generated, trained: Collection[str], deferred: Collection[str]) -> Fate:
    if generated.response_id in trained:
        return Fate.TRAINED
    ending = generated.episode.ending if generated.episode else None
    if ending is not None and ending.is_failure:
        return Fate.FAILED
    return Fate.PUT_OFF if generated.prompt_id in deferred else Fate.SURPLUS


def _mean_turns(played: Collection[Played]) -> float:
    return sum(each.num_turns for each in played) / len(played)


def _engine(run: EpisodeRun, hosts: SlowHosts, name: str) -> EpisodeReplica:
    machine, most_turns = run.machine, run.conditions.most_turns
    return EpisodeReplica(
        SimulatedEngine(name, machine.engine, writer=ActionWriter(machine, run.seed)),
        hosts,
        environments={DOMAIN: EnvironmentSettings(max_turns=most_turns)},
        bridges={DOMAIN: BRIDGE},
        config=EpisodeConfig(max_turn_tokens=machine.most_tokens, episode_s=1e6),
        max_model_len=MODEL_LEN,
        clock=asyncio.get_running_loop().time,
    )


def _prompt(prompt_id: str, seed: int) -> Prompt:
    """The head, and the seed of its group's environments."""
    return Prompt(
        prompt_id=prompt_id,
        domain=DOMAIN,
        token_ids=HEAD,
        gold="",
        text="",
        episode_seed=derive_seed(seed, "episode", prompt_id),
    )
