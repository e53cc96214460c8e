"""Asynchronous and tail-batching runs on one simulated engine and a learner of its own: the model
that the gains of policies are compared with.

The engine decodes 16 responses at a time, each token in the same time; the learner takes 4 s a
step; a step trains 8 groups of 4. Lengths are exponential with a mean of 2 s; `long_share` of the
responses take ten times as long. Loading takes no time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from artifacts.records import Request
from research.spot.simulated_rounds import (
    OverlappedRun,
    SimulatedLearner,
    SimulatedRound,
    play_overlapped,
)
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.records import RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import Decision, Event, Launch, Published, RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.prompt_stream import derive_seed

BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=4)
TRAIN_S, MEAN_S, STEP_S, SLOTS = 4.0, 2.0, 0.01, 16
LONGEST_TOKENS = 100_000
ENGINE = SimulatedEngineConfig(
    max_batch=SLOTS,
    step_s=STEP_S,
    step_s_per_sequence=0.0,
    prefill_s_per_token=0.0,
    kv_capacity_tokens=10_000_000,
    max_model_len=1_000_000,
)


@dataclass(frozen=True, slots=True)
class ExponentialWriter:
    """Exponential lengths; a share of them is ten times as long."""

    long_share: float

    def num_tokens(self, request: Request, noise: int) -> int:
        return self.drawn(noise)

    def drawn(self, noise: int) -> int:
        """The length of the response with this noise, in tokens."""
        draws = np.random.default_rng(derive_seed(noise, "length"))
        seconds = MEAN_S * draws.exponential() * (10 if draws.random() < self.long_share else 1)
        return max(1, round(seconds / STEP_S))

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        return (1,) * num_tokens

    def text(self, tokens: tuple[int, ...]) -> str:
        return ""


class Watched:
    """A scheduler whose launches are noted with the version of their dispatch."""

    def __init__(self, scheduler: RoundScheduler, version: int, versions: dict[str, int]) -> None:
        self._scheduler = scheduler
        self._version = version
        self._versions = versions

    def start(self) -> list[Decision]:
        return self._note(self._scheduler.start())

    def handle(self, event: Event) -> list[Decision]:
        return self._note(self._scheduler.handle(event))

    def publish(self, event: Published) -> list[Decision]:
        self._version = max(self._version, event.version)
        return self._note(self._scheduler.publish(event))  # type: ignore[attr-defined]

    def waiting_for(self) -> str:
        return self._scheduler.waiting_for()

    def _note(self, decisions: list[Decision]) -> list[Decision]:
        for decision in decisions:
            if isinstance(decision, Launch):
                self._versions.setdefault(decision.prompt_id, self._version)
        return decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousFigures:
    """A run in figures."""

    seconds: float  # virtual, a planned step
    lag_mean: float  # of trained groups, by the version of their dispatch
    lag_max: int
    length_share: float  # mean trained length over mean sampled length; 1 is without bias
    lost_share: float  # dropped or parked prompts, of those that were trained
    groups_per_s: float  # trained in planned steps
    tokens_per_s: float  # of those groups
    untrained_share: float  # of all tokens that were generated


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousRun:
    """A run as it was played."""

    rounds: list[SimulatedRound]
    lags: list[int]  # of trained groups, by the version of their dispatch
    seconds: float  # virtual, until the last planned step is trained


def play(policy: Policy, num_steps: int, long_share: float, seed: int = 0) -> AsynchronousFigures:
    """A run of so many steps in figures."""
    return outcome(run_virtual(simulate(policy, num_steps, long_share, seed)), long_share)


async def simulate(policy: Policy, num_steps: int, long_share: float, seed: int) -> AsynchronousRun:
    """The run, on the clock of its event loop."""
    versions: dict[str, int] = {}
    parked: list[str] = []

    def watch(plan: RoundPlan, scheduler: RoundScheduler) -> RoundScheduler:
        for prompt_id in parked:
            versions.pop(prompt_id, None)  # it is dispatched anew
        parked.clear()
        version = plan.admission.version if plan.admission else plan.step - 1
        return Watched(scheduler, version, versions)

    engines = [SimulatedEngine("engine-0", ENGINE, writer=ExponentialWriter(long_share))]
    run = OverlappedRun(
        policy=policy,
        batch=BATCH,
        num_steps=num_steps,
        domains=("any",) * 100_000,
        engines=engines,
        learner=SimulatedLearner(engines, TRAIN_S),
        feed=lambda: SimulatedFeed(SimulatedRewardConfig(median_s=0.0)),
        max_response_tokens=LONGEST_TOKENS,
        seed=seed,
        watch=watch,
    )
    rounds: list[SimulatedRound] = []
    lags: list[int] = []
    clock = asyncio.get_running_loop()
    planned_s: float | None = None
    async for played in play_overlapped(run):
        lags.extend(
            played.plan.step - 1 - versions[group.prompt.prompt_id]
            for group in played.result.groups
        )
        if played.plan.is_drain and planned_s is None:
            planned_s = clock.time() - played.rollout_s
        parked.extend(played.result.deferred)
        rounds.append(played)
    return AsynchronousRun(rounds=rounds, lags=lags, seconds=planned_s or clock.time())


def outcome(run: AsynchronousRun, long_share: float) -> AsynchronousFigures:
    """What a run gained and cost."""
    results = [played.result for played in run.rounds]
    planned = [played.result for played in run.rounds if not played.plan.is_drain]
    num_tokens = sum(_trained_tokens(result) for result in results)
    num_planned_tokens = sum(_trained_tokens(result) for result in planned)
    num_lost = sum(len(result.dropped) + len(result.deferred) for result in results)
    num_generated = sum(response.num_sampled for result in results for response in result.generated)
    sampled = MEAN_S / STEP_S * (1 + 9 * long_share)
    return AsynchronousFigures(
        seconds=run.seconds / len(planned),
        lag_mean=float(np.mean(run.lags)),
        lag_max=max(run.lags),
        length_share=num_tokens / (len(run.lags) * BATCH.responses_per_prompt) / sampled,
        lost_share=num_lost / len(run.lags),
        groups_per_s=sum(len(result.groups) for result in planned) / run.seconds,
        tokens_per_s=num_planned_tokens / run.seconds,
        untrained_share=1 - num_tokens / num_generated,
    )


def _trained_tokens(result: RoundResult) -> int:
    return sum(
        response.generated.num_sampled for group in result.groups for response in group.responses
    )
