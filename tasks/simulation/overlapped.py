"""Rounds that go on while earlier steps train, on simulated replicas and a virtual clock.

    round s ═ groups ═▶ learner: step s trains in its turn ─▶ update ─▶ publish ─▶ rounds read it
       └──▶ round s + 1 goes on with what round s left on the engines

`play_overlapped` plays the rounds of any policy over any learner; `play_overlapped_steps` plays a
`SimulatedRun` with whole steps. A step lasts from the publication before it to its own publication,
so that the durations of the steps sum to that of the run. With the stream trainer a step trains
groups as they are accepted, once all earlier steps are trained. Scoring that is unfinished when a
round closes begins again in the next round; a recorded verdict keeps its time. Driver and policies
are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Protocol

from artifacts.records import Generated, Group, Prompt, Running, Span, WeightsRef
from tasks.engines.base import Attestation, Engine, EngineLost
from tasks.engines.mailbox import Mailbox
from tasks.learner.split import Split
from tasks.learner.streaming import StreamedAccumulation
from tasks.rounds.driver import drive_round
from tasks.rounds.elastic_engines import ElasticWorkers
from tasks.rounds.records import RoundInputs, ScoreFeed
from tasks.rounds.report import round_report
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.simulation.cluster import Cluster
from tasks.simulation.figures import (
    PlayedStep,
    RoundRecord,
    StepWindow,
    played_step,
    reward_spans,
    trained_groups,
)
from tasks.simulation.reward_feed import RoundFeed
from tasks.simulation.simulated_round import SimulatedRound, blank_prompts, round_inputs
from tasks.simulation.simulated_run import SimulatedRun, Watch, prompts_of
from tasks.simulation.trained_round import (
    ROW_TOKENS,
    SimulatedTraining,
    ranks_of,
    update_and_publish,
)


def blank_weights(version: int) -> WeightsRef:
    """Returns a reference to weights without data: a simulated engine holds none."""
    return WeightsRef(version=version, path="", digest="")


class OverlappedLearner(Protocol):
    """Trains one step after the other while rounds go on, and publishes the weights of each
    step."""

    @property
    def version(self) -> int:
        """The newest weight version that every engine has loaded."""
        ...

    async def accept(self, step: int, group: Group) -> None:
        """Add an accepted group to the training of this step."""
        ...

    def train(self, step: int) -> None:
        """Start the training of this step, whose groups are complete, after all earlier steps."""
        ...

    async def idle(self) -> None:
        """Wait until every started step is trained and published."""
        ...

    async def published(self, wait_s: float) -> list[int]:
        """Returns the versions published since the last call; waits at most wait_s for one
        (`Publications`)."""
        ...


class SimulatedLearner:
    """An `OverlappedLearner` that takes train_s for each step."""

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
    learner: OverlappedLearner
    feed: Callable[[], ScoreFeed]
    max_response_tokens: int
    ask: Callable[[Iterable[PromptRef]], dict[str, Prompt]] = blank_prompts  # by id
    seed: int = 0
    is_shuffled: bool = True  # whether the rows are asked in an order drawn by the seed
    leaves_running: bool = True
    watch: Watch = field(default=lambda plan, scheduler: scheduler)  # looks at the decisions
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


def oldest_version(generated: Generated) -> int:
    """Returns the oldest weight version that sampled a token of the response."""
    return min(span.version for span in generated.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A trained step: its gradients, its update and publication."""

    training: SimulatedTraining
    spans: Sequence[Span]  # of its update and publication
    end_s: float  # when every engine had its weights


class RankLearner:
    """An `OverlappedLearner` that trains the groups of each step on simulated ranks."""

    def __init__(self, run: SimulatedRun, cluster: Cluster) -> None:
        self.version = 0
        self.steps: list[TrainedStep] = []
        self._run, self._cluster = run, cluster
        self._running = run.policy.algebra(run.batch).at_update
        self._groups: dict[int, asyncio.Queue[Group | None]] = {}  # by step; None ends it
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._news = Mailbox[int]()

    async def accept(self, step: int, group: Group) -> None:
        self._of_step(step).put_nowait(group)
        if self._run.stream_trainer.enabled:
            self._begin(step)

    def train(self, step: int) -> None:
        self._of_step(step).put_nowait(None)
        self._begin(step)

    async def idle(self) -> None:
        if self._tasks:
            await self._tasks[max(self._tasks)]

    async def published(self, wait_s: float) -> list[int]:
        return await self._news.take(wait_s)

    def _of_step(self, step: int) -> asyncio.Queue[Group | None]:
        return self._groups.setdefault(step, asyncio.Queue())

    def _begin(self, step: int) -> None:
        if step not in self._tasks:
            before = self._tasks.get(step - 1)
            self._tasks[step] = asyncio.create_task(self._train(step, before))

    async def _train(self, step: int, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        training = await self._accumulate(self._of_step(step))
        machine = self._run.machine
        spans = await update_and_publish(self._cluster, machine, step, self._running)
        del self._groups[step]
        end_s = asyncio.get_running_loop().time()
        self.steps.append(TrainedStep(training=training, spans=spans, end_s=end_s))
        self.version = step
        self._news.put(step)

    async def _accumulate(self, groups: asyncio.Queue[Group | None]) -> SimulatedTraining:
        spans: list[Span] = []
        splits: list[Split] = []

        async def record(split: Split) -> None:
            splits.append(split)

        work = self._run.work.gradients(self._run.seed)
        ranks = ranks_of(self._cluster, self._run.machine, work, spans)
        num_groups = self._run.batch.prompts_per_step
        async with asyncio.TaskGroup() as tasks:
            made = StreamedAccumulation(
                ranks, tasks, num_groups, ROW_TOKENS, flat_costs=work.flat_costs
            )
            if self._run.stream_trainer.enabled:
                for rank in range(len(ranks)):
                    made.free(rank)
            while (group := await groups.get()) is not None:
                await made.offer([group])
            await made.finish(record)
        return SimulatedTraining(split=splits[0], num_streamed=made.num_streamed, spans=spans)


async def play_overlapped_steps(run: SimulatedRun) -> tuple[PlayedStep, ...]:
    """Play the steps of a run whose rounds overlap training. Raises ValueError if devices both
    generate and train, or if the planner may rebuild engines."""
    if run.placement.is_colocated or run.planner.enabled:
        raise ValueError(
            "steps that overlap need devices that train alone and engines that are never rebuilt,"
            f" got learner_devices={run.learner_devices}, planner.enabled={run.planner.enabled};"
            " set learner_devices and leave the planner out"
        )
    return await _Overlapped(run).play()


class _Overlapped:
    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._cluster = Cluster(run.machine, run.work, run.placement)
        self._learner = RankLearner(run, self._cluster)
        self._feed = RoundFeed(run.work.feed(run.machine, run.seed))
        self._records: list[RoundRecord] = []
        self._spans: list[Span] = []  # of rollouts and rewards
        self._num_generated = 0  # when the last round closed

    async def play(self) -> tuple[PlayedStep, ...]:
        self._cluster.open_step(1, self._run.seed)
        await self._cluster.rebuild(self._run.tensor_parallel_size, 0)
        async for played in play_overlapped(self._rounds()):
            await self._note(played)
        return tuple(self._steps())

    def _rounds(self) -> OverlappedRun:
        run = self._run
        return OverlappedRun(
            policy=run.policy,
            batch=run.batch,
            num_steps=run.num_steps,
            domains=run.domains,
            engines=self._cluster.engines,
            learner=self._learner,
            feed=self._open_feed,
            max_response_tokens=run.work.longest_tokens,
            ask=partial(prompts_of, run.work),
            seed=run.seed,
            is_shuffled=False,
            watch=self._open_round,
        )

    def _open_feed(self) -> RoundFeed:
        self._feed.open_round()
        return self._feed

    def _open_round(self, plan: RoundPlan, scheduler: RoundScheduler) -> RoundScheduler:
        self._cluster.open_step(plan.step, self._run.seed)
        return self._run.watch(plan, scheduler)

    async def _note(self, played: SimulatedRound) -> None:
        """Keep what the figures of a round need, and not its responses."""
        result, cluster = played.result, self._cluster
        readings = await cluster.readings()
        report = round_report(result, readings, cluster.devices, is_evaluation=False)
        num_generated = await cluster.tokens_generated()
        self._records.append(
            RoundRecord(
                plan=played.plan,
                report=report,
                groups=trained_groups(result.groups),
                tensor_parallel_size=cluster.size,
                num_generated=num_generated - self._num_generated,
            )
        )
        self._num_generated = num_generated
        self._spans += [*report.spans, *reward_spans(result.scores)]

    def _steps(self) -> Iterable[PlayedStep]:
        """The figures of every step, now that it is known what went on beside its training."""
        of_steps = [(*step.training.spans, *step.spans) for step in self._learner.steps]
        spans = [*self._spans, *chain.from_iterable(of_steps)]
        start_s = 0.0
        for record, trained in zip(self._records, self._learner.steps, strict=True):
            end_s = trained.end_s
            window = StepWindow(
                spans=[span for span in spans if span.end_s > start_s and span.start_s < end_s],
                devices=self._cluster.placement.devices,
                start_s=start_s,
                end_s=end_s,
            )
            yield played_step(record, trained.training, window)
            start_s = end_s
