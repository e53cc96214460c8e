"""Asynchronous runs on simulated replicas and a simulated learner, on a virtual clock.

    round s closes ──▶ learner: step s trains, loads its version into the engines, publishes it
               └────▶ round s + 1 goes on with what round s left on the engines

Driver and policies are the real ones; so is what is handed from one round to the next. Leaves out
what is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from artifacts.records import Generated, Group, Prompt, Running, WeightsRef
from tasks.engines.base import Attestation, Engine, EngineLost
from tasks.engines.mailbox import Mailbox
from tasks.rounds.driver import drive_round
from tasks.rounds.elastic_engines import ElasticWorkers
from tasks.rounds.records import RoundInputs, ScoreFeed
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.simulation.simulated_round import SimulatedRound, blank_prompts, round_inputs

Ask = Callable[[Iterable[PromptRef]], dict[str, Prompt]]
Watch = Callable[[RoundPlan, RoundScheduler], RoundScheduler]


def blank_weights(version: int) -> WeightsRef:
    """Of a simulated engine, which has none."""
    return WeightsRef(version=version, path="", digest="")


class OverlappedLearner(Protocol):
    """Trains one step after the other while rounds go on, and publishes what it made."""

    @property
    def version(self) -> int:
        """The newest that every engine has."""
        ...

    async def accept(self, step: int, group: Group) -> None:
        """A group that this step trains."""
        ...

    def train(self, step: int) -> None:
        """Train this step, whose groups are all there, after those before it."""
        ...

    async def idle(self) -> None:
        """Wait until everything is trained and published."""
        ...

    async def published(self, wait_s: float) -> list[int]:
        """As `Publications`."""
        ...


class SimulatedLearner:
    """Trains one step after the other, each for train_s, and publishes what it made."""

    def __init__(
        self,
        engines: Sequence[Engine],
        train_s: float,
        at_update: Running = Running.INTERRUPT,
        weights: Callable[[int], WeightsRef] = blank_weights,
    ) -> None:
        """weights: of a version."""
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
        """Every step takes the same time."""

    def train(self, step: int) -> None:
        """Train this step after those before it."""
        before = self._training[-1] if self._training else None
        self._training.append(asyncio.create_task(self._train(step, before)))

    async def idle(self) -> None:
        """Wait until everything is trained and published."""
        if self._training:
            await self._training[-1]

    async def published(self, wait_s: float) -> list[int]:
        """As `Publications`."""
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
    """What is played."""

    policy: Policy
    batch: BatchConfig
    num_steps: int
    domains: Sequence[str]
    engines: Sequence[Engine]
    learner: OverlappedLearner
    feed: Callable[[], ScoreFeed]
    max_response_tokens: int
    ask: Ask = blank_prompts  # the prompts of a round, by id
    seed: int = 0
    is_shuffled: bool = True  # whether the rows are asked in an order drawn by the seed
    leaves_running: bool = True
    watch: Watch = field(default=lambda plan, scheduler: scheduler)  # looks at the decisions
    # tells a round of the engines that join it, one for each round
    elastic_workers: Callable[[], ElasticWorkers | None] = lambda: None
    balancing: BalancingConfig = field(default_factory=BalancingConfig)


async def play_overlapped(run: OverlappedRun) -> AsyncIterator[SimulatedRound]:
    """The rounds of a run, each begun when the one before it closes; of a policy that overlaps
    nothing, when it is trained."""
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
    """What the round of this step is planned from."""
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
    """The round over the run's engines, with nothing recorded."""
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


def oldest_version(generated: Generated) -> int:
    """The version that sampled its first token."""
    return min(span.version for span in generated.versions)
