"""Whole steps whose rounds go on while earlier steps train, on a virtual clock.

    round s ═ groups ═▶ learner: step s trains in its turn ─▶ update ─▶ publish ─▶ rounds read it
       └──▶ round s + 1 goes on with what round s left on the engines

A step lasts from the publication before it to its own publication, so that the durations of the
steps sum to that of the run. With the stream trainer a step trains groups as they are accepted,
once all earlier steps are trained. Scoring that is unfinished when a round closes begins again in
the next round; a recorded verdict keeps its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count

from artifacts.records import Group, Span
from tasks.engines.mailbox import Mailbox
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundInputs, RoundResult
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.simulation.cluster import Cluster
from tasks.simulation.figures import PlayedStep, RoundRecord, played_step, record_of
from tasks.simulation.simulated_run import RoundFeed, SimulatedRun
from tasks.simulation.trained_round import (
    SimulatedGradients,
    SimulatedTraining,
    update_and_publish,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A trained step: its gradients, its update and publication."""

    training: SimulatedTraining
    spans: Sequence[Span]  # of its update and publication
    end_s: float  # when every engine had its weights


class RankLearner:
    """Trains one step after the other on simulated ranks while rounds go on, and publishes the
    weights of each step (`Publications`)."""

    def __init__(self, run: SimulatedRun, cluster: Cluster) -> None:
        self.version = 0
        self.steps: list[TrainedStep] = []
        self._run, self._cluster = run, cluster
        self._running = run.policy.algebra(run.batch).at_update
        self._groups: dict[int, asyncio.Queue[Group | None]] = {}  # by step; None ends it
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._news = Mailbox[int]()

    async def accept(self, step: int, group: Group) -> None:
        """Add an accepted group to the training of this step."""
        self._of_step(step).put_nowait(group)
        if self._run.stream_trainer.enabled:
            self._begin(step)

    def train(self, step: int) -> None:
        """Start the training of this step, whose groups are complete, after all earlier steps."""
        self._of_step(step).put_nowait(None)
        self._begin(step)

    async def idle(self) -> None:
        """Wait until every started step is trained and published."""
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
        num_groups = self._run.batch.prompts_per_step
        async with asyncio.TaskGroup() as tasks:
            gradients = SimulatedGradients(self._run, self._cluster, tasks, num_groups)
            if self._run.stream_trainer.enabled:
                gradients.begin(self._cluster.placement.ranks)
            while (group := await groups.get()) is not None:
                await gradients.accept(group)
            return await gradients.finish()


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

    async def play(self) -> tuple[PlayedStep, ...]:
        self._cluster.open_step(1, self._run.seed)
        self._cluster.rebuild(self._run.tensor_parallel_size, 0)
        state, before = QueueState(), None
        for step in count(1):
            if step > self._run.num_steps:
                await self._learner.idle()
            plan = self._run.planned(state, step, self._learner.version)
            if plan is None:
                break
            self._cluster.open_step(step, self._run.seed)
            before = await drive_round(self._inputs(plan, before))
            self._learner.train(step)
            state = finish_round(state, plan, before)
            self._records.append(await record_of(plan, before, self._cluster))
        await self._learner.idle()
        return tuple(self._steps())

    def _inputs(self, plan: RoundPlan, before: RoundResult | None) -> RoundInputs:
        """Returns the inputs of a round, which goes on with what the round before left."""
        return self._run.round_inputs(
            self._cluster,
            self._feed,
            plan,
            self._run.prompts(plan.candidates),
            recorded=before.carried_responses if before is not None else (),
            adopted=before.in_flight if before is not None else (),
            seed=0,  # the lengths of a step have the run's
            on_accept=partial(self._learner.accept, plan.step),
            publications=self._learner if plan.overlaps else None,
            leaves_running=plan.overlaps and plan.step < self._run.num_steps,
        )

    def _steps(self) -> Iterable[PlayedStep]:
        """The figures of every step, now that it is known what went on beside its training."""
        of_rounds = [record.spans for record in self._records]
        of_steps = [(*step.training.spans, *step.spans) for step in self._learner.steps]
        spans = list(chain.from_iterable((*of_rounds, *of_steps)))
        devices, start_s = self._cluster.placement.devices, 0.0
        for record, trained in zip(self._records, self._learner.steps, strict=True):
            end_s = trained.end_s
            own = [span for span in spans if span.end_s > start_s and span.start_s < end_s]
            yield played_step(record, trained.training, own, devices, start_s, end_s)
            start_s = end_s
