"""Rounds on simulated replicas and a virtual clock, for experiments and tests that look at rounds
and not at whole steps.

    round s ═ groups ═▶ learner: step s trains in its turn ─▶ publish ─▶ rounds read it
       └──▶ round s + 1 goes on with what round s left on the engines

The driver, its router and the policies are the real ones; engines, prompts, verdicts and training
are made up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from artifacts.records import Generated, Group, Prompt, Running, WeightsRef
from tasks.engines.base import Attestation, Engine, EngineLost, SamplingConfig
from tasks.engines.mailbox import Mailbox
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.rounds.driver import drive_round
from tasks.rounds.elastic_engines import ElasticWorkers
from tasks.rounds.records import RoundInputs, RoundResult, ScoreFeed
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.queue_state import QueueState, finish_round

PROMPT_TOKENS = 200
DEADLINE_S = 1e6  # virtual seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRound:
    """A round that was played."""

    plan: RoundPlan
    result: RoundResult
    state: QueueState  # where the prompts stand after it
    rollout_s: float  # virtual seconds


def make_engines(num_engines: int, config: SimulatedEngineConfig) -> list[SimulatedEngine]:
    """Make replicas named engine-0, engine-1, ..."""
    return [SimulatedEngine(f"engine-{place}", config) for place in range(num_engines)]


def blank_prompts(refs: Iterable[PromptRef], num_tokens: int = PROMPT_TOKENS) -> dict[str, Prompt]:
    """Returns prompts by id, each of num_tokens placeholder tokens and without text."""
    return {
        ref.prompt_id: Prompt(
            prompt_id=ref.prompt_id,
            domain=ref.domain,
            token_ids=(1,) * num_tokens,
            gold="",
            text="",
        )
        for ref in refs
    }


def round_inputs(
    plan: RoundPlan,
    scheduler: RoundScheduler,
    engines: Sequence[Engine],
    max_response_tokens: int,
    **others: Any,  # Any: fields of RoundInputs
) -> RoundInputs:
    """Returns the inputs of a round over these engines. others: fields of `RoundInputs` that differ
    from the defaults here."""
    inputs = RoundInputs(
        plan=plan,
        versions=plan.versions,
        prompts=blank_prompts(plan.candidates),
        scheduler=scheduler,
        engines=engines,
        feed=SimulatedFeed(SimulatedRewardConfig()),
        sampling=SamplingConfig(max_response_tokens=max_response_tokens),
        recorded=(),
        seed=0,
        deadline_s=DEADLINE_S,
        on_finished=_forget,
        on_accept=_train,
    )
    return replace(inputs, **others)


def blank_weights(version: int) -> WeightsRef:
    """Returns a reference to weights without data: a simulated engine holds none."""
    return WeightsRef(version=version, path="", digest="")


async def load_version(engines: Sequence[Engine], version: int) -> None:
    """Load weights of this version into every engine."""
    for engine in engines:
        await engine.load_weights(blank_weights(version), probes=())


def _forget(generated: Sequence[Generated]) -> None:
    """Ignore the responses: nothing reads single ones here."""


async def _train(group: Group) -> None:
    """Training takes no time."""


class SimulatedLearner:
    """Trains one step after the other while rounds go on, each in train_s, and publishes the
    weights of each step."""

    def __init__(
        self,
        engines: Sequence[Engine],
        train_s: float,
        at_update: Running = Running.INTERRUPT,
        weights: Callable[[int], WeightsRef] = blank_weights,
    ) -> None:
        """weights: returns the reference to a version's weights."""
        self.version = 0
        self.drained_s = 0.0  # of the engine that took longest, summed over the loads
        self.busy_s = 0.0
        self._engines = engines
        self._train_s = train_s
        self._at_update = at_update
        self._weights = weights
        self._news = Mailbox[int]()
        self._training: list[asyncio.Task[None]] = []

    async def accept(self, step: int, group: Group) -> None:
        """Ignore the group: every step takes the same time."""

    def train(self, step: int) -> None:
        """Start the training of this step after all earlier steps."""
        before = self._training[-1] if self._training else None
        self._training.append(asyncio.create_task(self._train(step, before)))

    async def idle(self) -> None:
        """Wait until every started step is trained and published."""
        if self._training:
            await self._training[-1]

    async def published(self, wait_s: float) -> list[int]:
        """Returns the versions published since the last call; waits at most wait_s for one
        (`Publications`)."""
        return await self._news.take(wait_s)

    async def _train(self, step: int, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        await asyncio.sleep(self._train_s)
        self.busy_s += self._train_s
        weights = self._weights(step)
        loads = (engine.load_weights(weights, (), self._at_update) for engine in self._engines)
        attested = await asyncio.gather(*loads, return_exceptions=True)
        failures = [held for held in attested if isinstance(held, BaseException)]
        if unexpected := [error for error in failures if not isinstance(error, EngineLost)]:
            raise unexpected[0]
        loaded = [held for held in attested if isinstance(held, Attestation)]
        self.drained_s += max((held.drained_s for held in loaded), default=0.0)
        self.version = step
        self._news.put(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlappedRun:
    """A run whose rounds may overlap training: policy, engines, learner and rewards."""

    policy: Policy
    batch: BatchConfig
    num_steps: int
    domains: Sequence[str]
    engines: Sequence[Engine]
    learner: SimulatedLearner
    feed: Callable[[], ScoreFeed]
    max_response_tokens: int
    ask: Callable[[Iterable[PromptRef]], dict[str, Prompt]] = blank_prompts  # by id
    seed: int = 0
    is_shuffled: bool = True  # whether the rows are asked in an order drawn by the seed
    leaves_running: bool = True
    # looks at the decisions
    watch: Callable[[RoundPlan, RoundScheduler], RoundScheduler] = field(
        default=lambda plan, scheduler: scheduler
    )
    # returns the elastic workers that may join a round; called once per round
    elastic_workers: Callable[[], ElasticWorkers | None] = lambda: None
    balancing: BalancingConfig = field(default_factory=BalancingConfig)


async def play_overlapped(run: OverlappedRun) -> AsyncIterator[SimulatedRound]:
    """Play the rounds of a run. Each round begins when the one before it closes; under a policy
    without overlap, when the step of that round is trained and published."""
    overlaps = run.policy.algebra(run.batch).overlaps
    state, before = QueueState(), None
    loop = asyncio.get_running_loop()
    for step in range(1, 1_000_000):
        if not overlaps or step > run.num_steps:
            await run.learner.idle()
        plan = run.policy.plan_round(turn_of(run, state, step))
        if plan is None:
            break
        started_s = loop.time()
        inputs = inputs_of(run, plan)
        if before is not None:
            recorded = before.carried_responses
            inputs = replace(inputs, recorded=recorded, adopted=before.in_flight)
        before = await drive_round(inputs)
        run.learner.train(step)
        state = finish_round(state, plan, before)
        yield SimulatedRound(
            plan=plan, result=before, state=state, rollout_s=loop.time() - started_s
        )
    await run.learner.idle()


def turn_of(run: OverlappedRun, state: QueueState, step: int) -> PlanningInputs:
    """Returns the inputs from which the policy plans the round of this step."""
    return PlanningInputs(
        state=state,
        batch=run.batch,
        step=step,
        num_steps=run.num_steps,
        domains=run.domains,
        seed=run.seed if run.is_shuffled else None,
        published=run.learner.version,
    )


def inputs_of(run: OverlappedRun, plan: RoundPlan) -> RoundInputs:
    """Returns the inputs of a round over the run's engines, without responses of earlier rounds."""
    scheduler = run.watch(plan, run.policy.scheduler(plan))
    inputs = round_inputs(
        plan,
        scheduler,
        run.engines,
        run.max_response_tokens,
        prompts=run.ask(plan.candidates),
        feed=run.feed(),
        attempt=plan.step,
        on_accept=partial(run.learner.accept, plan.step),
        elastic_workers=run.elastic_workers(),
        balancing=run.balancing,
    )
    if not plan.overlaps:
        return inputs
    leaves_running = run.leaves_running and plan.step < run.num_steps
    return replace(inputs, publications=run.learner, leaves_running=leaves_running)
