"""A run of whole steps with workers that come and go, on a virtual clock: rollout, training,
update, publication.

    window for n workers ─▶ round (real driver, router, seeding window) ═ groups ═▶ learner ranks
         ▲                                                                              │
         └── what the step waited for ◀── published: own engines, then workers ◀── update┘

Driver, router, policies, dealing of groups and the ledger of costs are the real ones; engines,
learners, workers and verdicts take time and compute nothing. Leaves out what it costs a GPU to
change from generating to training.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from artifacts.prices import HOUR_S, PriceConfig
from artifacts.reports.holding import Held, Window, cost_figures, held_seconds
from research.ablations.policies import policy_of
from research.spot.elastic_round import ElasticRound, ElasticRoundRules
from research.spot.elastic_shapes import SpotShape
from research.spot.spot_traces import Trace
from research.spot.spot_workers import SPOT, SpotWorkers
from tasks.elastic.worker_count import Hourly, Known, WorkerCountSteps, with_step, workers_to_try
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.records import RoundResult
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.scheduling.seeding import Seeding, SeedingConfig, SeedingTimes, after_step
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.simulated_round import load_version

RESERVED = "reserved"
# dollars a GPU-hour, means over regions of two clouds: 8 H100 on demand 83.79, 2 preemptible 5.32
PRICES = PriceConfig(classes={RESERVED: 83.79 / 8, SPOT: 5.32 / 2})


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRun:
    """What is played."""

    shape: SpotShape
    trace: Trace = ()
    most_workers: int = 99
    # workers of those that are offered: all; no more than N_prem, as the paper; the number that
    # has trained most for a dollar
    holds: Literal["all", "n_prem", "best"] = "all"
    num_steps: int = 10**6
    until_s: float = float("inf")  # no step begins after it
    policy: Policy = field(default_factory=partial(policy_of, {"kind": "sync"}))
    stream_trainer: StreamTrainerConfig = field(default_factory=StreamTrainerConfig)
    seeding: SeedingConfig = field(default_factory=SeedingConfig)
    balancing: BalancingConfig = field(default_factory=BalancingConfig)
    windows_s: Mapping[int, float] = field(default_factory=dict)  # known before the run
    windows_by_kind: bool = False  # short and long rounds have windows of their own
    seeds: bool = True  # off: the own engines stop as soon as a worker is there
    joins_mid_step: bool = True  # off: weights are handed over between two steps alone
    notice_s: float = 30.0  # between the word that a worker is taken away and its end
    prices: PriceConfig = PRICES
    seed: int = 0

    @property
    def hourly(self) -> Hourly:
        """What the trainer costs, and a worker."""
        own, spot = (HOUR_S * self.prices.dollars_per_s(name) for name in (RESERVED, SPOT))
        gpus = self.shape.gpus
        return Hourly(own=own * self.shape.num_own * gpus, worker=spot * gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotStep:
    """A step in figures."""

    kind: str  # of its round
    start_s: float
    end_s: float
    tokens: int  # trained, with those of their prompts, as the artifact counts
    num_workers: int  # built ones when it began
    times: SeedingTimes
    worth_holding: float | None
    figures: Mapping[str, float]  # of its cost


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRun:
    """A run in figures."""

    steps: tuple[SpotStep, ...]
    windows_s: Mapping[int, float]  # that it found, by number of workers
    held: tuple[Held, ...]

    def after(self, num_steps: int) -> SpotRun:
        """Without the first steps."""
        return SpotRun(steps=self.steps[num_steps:], windows_s=self.windows_s, held=self.held)

    @property
    def tokens_per_s(self) -> float:
        seconds = sum(step.end_s - step.start_s for step in self.steps)
        return sum(step.tokens for step in self.steps) / seconds

    @property
    def tokens_per_dollar(self) -> float:
        dollars = sum(step.figures["cost/dollars"] for step in self.steps)
        return sum(step.tokens for step in self.steps) / dollars

    def workers(self, devices: int) -> float:
        """Workers that were held, on average."""
        seconds = sum(step.end_s - step.start_s for step in self.steps)
        spot_s = sum(step.figures.get(f"cost/{SPOT}_worker_s", 0.0) for step in self.steps)
        return spot_s / devices / seconds


def play(run: ElasticRun) -> SpotRun:
    """The run from its beginning, on a clock of its own."""
    return run_virtual(_Player(run).play())


class _Player:
    def __init__(self, run: ElasticRun) -> None:
        self._run, shape = run, run.shape
        self._batch = BatchConfig(
            prompts_per_step=shape.num_prompts, responses_per_prompt=shape.responses_per_prompt
        )
        self._seedings: defaultdict[str, Seeding] = defaultdict(
            lambda: Seeding(memory_s=run.windows_s)
        )
        self._known: Known = {}
        self._state = QueueState()
        self._own: list[SimulatedEngine] = []
        self._lengths: list[int] = []  # of responses, for projections
        self._domains = ("a",) * 1_000_000

    async def play(self) -> SpotRun:
        run, clock = self._run, asyncio.get_running_loop()
        self._own = [
            run.shape.replica(f"engine-{place}", run.seed) for place in range(run.shape.num_own)
        ]
        spot = SpotWorkers(
            run.shape,
            run.trace,
            seed=run.seed,
            most=run.most_workers,
            notice_s=run.notice_s,
            joins_mid_step=run.joins_mid_step,
            starts_built=True,
        )
        following = asyncio.create_task(spot.follow())
        steps: list[SpotStep] = []
        await asyncio.sleep(run.shape.transfer_s)  # as after any publication before this run
        while len(steps) < run.num_steps and clock.time() < run.until_s:
            steps.append(await self._step(len(steps) + 1, spot))
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        spot.close()
        return SpotRun(
            steps=tuple(steps),
            windows_s=self._seedings[""].memory_s,
            held=tuple(spot.held(clock.time())),
        )

    async def _step(self, step: int, spot: SpotWorkers) -> SpotStep:
        clock = asyncio.get_running_loop().time
        began_s, num_workers, changes = clock(), spot.num_ready, spot.num_changes
        plan = self._plan(step)
        played = ElasticRound(self._rules(plan, num_workers))
        spot.open_round()
        result = await played.play(self._own, spot)
        spot.close_round()
        await asyncio.sleep(self._run.shape.update_s + self._run.shape.publish_s)
        await load_version(self._own, step)
        await spot.publish(step)
        ended_s = clock()
        times = played.times(
            result,
            ended_s=ended_s,
            num_workers=spot.num_ready,
            is_steady=changes == spot.num_changes,
        )
        kind = self._kind(plan)
        seeding = after_step(self._seedings[kind], times, self._run.seeding)
        self._seedings[kind] = seeding
        tokens = trained_tokens(result, self._run.shape.prompt_tokens)
        if times.is_steady:
            trained = WorkerCountSteps(tokens=tokens, seconds=ended_s - began_s)
            self._known = with_step(self._known, times.num_workers, trained)
        self._hold(spot, seeding.worth_holding)
        self._state = finish_round(self._state, plan, result)
        self._lengths = sorted(
            response.num_sampled
            for response in result.generated
            if response.finish_reason != "aborted"
        )
        return SpotStep(
            kind=plan.kind,
            start_s=began_s,
            end_s=ended_s,
            tokens=tokens,
            num_workers=num_workers,
            times=times,
            worth_holding=seeding.worth_holding,
            figures=self._cost(tokens, spot, Window(start_s=began_s, end_s=ended_s)),
        )

    def _kind(self, plan: RoundPlan) -> str:
        """Of rounds with a window in common."""
        return plan.kind if self._run.windows_by_kind else ""

    def _hold(self, spot: SpotWorkers, worth: float | None) -> None:
        """As many workers as the run goes by from now on. worth: N_prem."""
        if self._run.holds == "n_prem" and worth is not None:
            spot.hold_at_most(max(1, math.ceil(worth)))
        best = workers_to_try(self._known, self._run.hourly, spot.num_offered)
        if self._run.holds == "best" and best is not None:
            spot.hold_at_most(best)
            spot.let_go()

    def _plan(self, step: int) -> RoundPlan:
        turn = PlanningInputs(
            state=self._state,
            batch=self._batch,
            step=step,
            num_steps=10**6,
            domains=self._domains,
            seed=None,
        )
        plan = self._run.policy.plan_round(turn)
        assert plan is not None, "the run is never over by itself"
        return plan

    def _rules(self, plan: RoundPlan, num_workers: int) -> ElasticRoundRules:
        run, seeding = self._run, self._seedings[self._kind(plan)]
        return ElasticRoundRules(
            shape=run.shape,
            plan=plan,
            scheduler=run.policy.scheduler(plan),
            window_s=seeding.window_for(num_workers, run.seeding) if run.seeds else 0.0,
            stream_trainer=run.stream_trainer,
            balancing=run.balancing,
            lengths=self._lengths,
            seed=run.seed,
        )

    def _cost(self, tokens: int, spot: SpotWorkers, window: Window) -> dict[str, float]:
        shape = self._run.shape
        own = [
            Held(
                device=f"own:{gpu}",
                price_class=RESERVED,
                start_s=window.start_s,
                end_s=window.end_s,
            )
            for gpu in range(shape.num_own * shape.gpus)
        ]
        held_s = held_seconds([*own, *spot.held(window.end_s)], window)
        return cost_figures(held_s, tokens, window, self._run.prices)


def trained_tokens(result: RoundResult, prompt_tokens: int) -> int:
    """Of accepted groups, each response with its prompt."""
    return sum(
        prompt_tokens + response.generated.num_sampled
        for group in result.groups
        for response in group.responses
    )
