"""Simulated steps of a policy whose rounds go on while earlier steps train.

    round s ═ groups ═▶ learner: step s trains in its turn ─▶ update ─▶ publish ─▶ rounds hear of it
       └──▶ round s + 1 goes on with what round s left on the engines

A step lasts from the publication before its own to its own, so that the steps of a run make up its
time. With the stream trainer a step trains its groups as they are accepted, once it is its turn.
Verdicts that a round takes over from the one before it begin again, but for recorded ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from artifacts.records import Group, Prompt, Span
from tasks.engines.mailbox import Mailbox
from tasks.learner.split import Split
from tasks.learner.streaming import StreamedAccumulation
from tasks.rounds.report import round_report
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.simulation.cluster import Cluster
from tasks.simulation.figures import (
    PlayedStep,
    RoundRecord,
    StepWindow,
    played_step,
    reward_spans,
    trained_groups,
)
from tasks.simulation.learner import ROW_TOKENS, SimulatedTraining, ranks_of, update_and_publish
from tasks.simulation.overlapped_rounds import OverlappedRun, play_overlapped
from tasks.simulation.round_feed import RoundFeed
from tasks.simulation.simulated_round import SimulatedRound
from tasks.simulation.simulated_run import SimulatedRun, prompts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step of the learner."""

    training: SimulatedTraining
    spans: Sequence[Span]  # of its update and publication
    end_s: float  # when every engine had its weights


class RankLearner:
    """Trains the groups of one step after the other on its ranks (`OverlappedLearner`)."""

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
    """The run's steps. ValueError where engines would have to give way to training."""
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
            ask=self._ask,
            seed=run.seed,
            is_shuffled=False,
            watch=self._open_round,
        )

    def _ask(self, refs: Iterable[PromptRef]) -> dict[str, Prompt]:
        return prompts_of(self._run.work, refs)

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
