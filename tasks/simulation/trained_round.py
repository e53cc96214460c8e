"""Simulated learner ranks, and one simulated round with the gradients of its groups.

    driver ═ accepted groups ═▶ ranks that the stream trainer freed
       │ round over
       └─▶ devices go over to training ─▶ groups that are left, dealt to all ranks

Ranks take time and compute nothing; the driver, its stream trainer and the dealing are the real
ones. Leaves out what comes before the round and after the publication (`steps`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from artifacts.records import Group, Prompt, Response, Running, Span
from tasks.engines.base import EngineStats
from tasks.learner.dealing import GroupPart
from tasks.learner.reports import AccumulateReport
from tasks.learner.split import Split
from tasks.learner.streaming import StreamedAccumulation
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundInputs, RoundResult, ScoreFeed
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.stream_training import ScaleDown, StreamTrainer, StreamTrainerConfig
from tasks.simulation.cluster import Cluster, device_names, spans_on
from tasks.simulation.protocols import GradientWork, MachineCosts, every_token
from tasks.simulation.simulated_round import round_inputs

ROW_TOKENS = 16_384  # of a full learner row


@dataclass(slots=True)
class SimulatedRank:
    """A learner rank that takes a fixed time per computed token and computes nothing
    (`GradientRank`)."""

    name: str
    devices: Sequence[str]  # that compute together
    s_per_token: float
    spans: list[Span]  # the rank appends its work here
    num_tokens: Callable[[Sequence[GroupPart]], int] = every_token  # that it computes

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        clock = asyncio.get_running_loop().time
        start_s = clock()
        num_tokens = self.num_tokens(parts)
        await asyncio.sleep(self.s_per_token * num_tokens)
        self.spans += [
            Span(device=device, actor=self.name, kind="train", start_s=start_s, end_s=clock())
            for device in self.devices
        ]
        return AccumulateReport(
            num_groups=sum(part.is_first for part in parts), num_tokens_computed=num_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTraining:
    """A step's gradients: which rank trained what, and when."""

    split: Split  # which rank trained what
    num_streamed: int  # groups of which something was trained before the round was over
    spans: Sequence[Span]  # of training, and of devices that went over to it


def ranks_of(
    cluster: Cluster, machine: MachineCosts, work: GradientWork, spans: list[Span]
) -> list[SimulatedRank]:
    """Make the learner ranks of a cluster; the ranks append their work to `spans`."""
    return [
        SimulatedRank(
            name, devices, machine.train_s_per_token() / len(devices), spans, work.num_tokens
        )
        for name, devices in cluster.placement.ranks.items()
    ]


async def update_and_publish(
    cluster: Cluster, machine: MachineCosts, version: int, running: Running = Running.DROP
) -> tuple[Span, ...]:
    """Make new weights from complete gradients and load them into every engine; returns the
    spans."""
    clock, placement = asyncio.get_running_loop().time, cluster.placement
    start_s = clock()
    await asyncio.sleep(machine.update_s())
    updated_s = clock()
    await asyncio.sleep(machine.publish_s())
    await cluster.load(version, running)
    learners = device_names(placement.learner)
    return (
        *spans_on(learners, "learner", "update", start_s, updated_s),
        *spans_on(placement.devices, "learner", "publish", updated_s, clock()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRules:
    """The machine, plan, scheduler and work of a round."""

    machine: MachineCosts
    plan: RoundPlan
    scheduler: RoundScheduler  # fresh
    prompts: Mapping[str, Prompt]  # of the plan's candidates
    recorded: Sequence[Response]  # what the round before carried
    feed: ScoreFeed
    gradients: GradientWork
    longest_tokens: int
    stream_trainer: StreamTrainerConfig
    balancing: BalancingConfig
    history: Sequence[int]  # lengths of earlier rounds, for projections
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWithGradients:
    """The result of a round whose gradients are complete."""

    result: RoundResult
    readings: Sequence[EngineStats]  # of the engines, when it was over
    training: SimulatedTraining


class TrainedRound:
    """Plays one round and trains its groups."""

    def __init__(self, rules: RoundRules, cluster: Cluster) -> None:
        self._rules, self._cluster = rules, cluster
        self._clock = asyncio.get_running_loop().time
        self._spans: list[Span] = []
        self._splits: list[Split] = []
        self._freed: set[str] = set()  # engines that have stopped
        self._ranks = ranks_of(cluster, rules.machine, rules.gradients, self._spans)

    async def play(self) -> RoundWithGradients:
        async with asyncio.TaskGroup() as tasks:
            accumulation = StreamedAccumulation(
                self._ranks,
                tasks,
                self._rules.plan.accept_prompts,
                ROW_TOKENS,
                flat_costs=self._rules.gradients.flat_costs,
            )
            result = await drive_round(self._inputs(accumulation))
            readings = await self._cluster.readings()
            if self._cluster.placement.is_colocated:
                await self._stop(set(self._cluster.devices) - self._freed)
            await accumulation.finish(self._record)
        training = SimulatedTraining(
            split=self._splits[0], num_streamed=accumulation.num_streamed, spans=self._spans
        )
        return RoundWithGradients(result=result, readings=readings, training=training)

    def _inputs(self, accumulation: StreamedAccumulation) -> RoundInputs:
        rules, cluster = self._rules, self._cluster
        places = {rank.name: place for place, rank in enumerate(self._ranks)}

        async def accept(group: Group) -> None:
            await accumulation.offer([group])

        async def free(decision: ScaleDown) -> None:
            await self._stop(decision.engines)
            for learner in decision.learners:
                accumulation.free(places[learner])

        return round_inputs(
            rules.plan,
            rules.scheduler,
            cluster.engines,
            rules.longest_tokens,
            prompts=rules.prompts,
            recorded=rules.recorded,
            feed=rules.feed,
            seed=rules.seed,
            attempt=rules.plan.step,
            on_accept=accept,
            on_freed=free,
            balancing=rules.balancing,
            stream_trainer=StreamTrainer(
                rules.stream_trainer,
                cluster.groups,
                rules.plan.accept_prompts,
                rules.history,
                devices_per_engine=cluster.size,
            ),
        )

    async def _stop(self, engines: Sequence[str] | set[str]) -> None:
        """Switch the devices of these engines from generating to training."""
        self._freed.update(engines)
        start_s, free_s = self._clock(), self._rules.machine.free_s()
        if not (engines and free_s):
            return
        await asyncio.sleep(free_s)
        for engine in sorted(engines):
            devices = self._cluster.devices[engine]
            self._spans += spans_on(devices, engine, "sleep", start_s, self._clock())

    async def _record(self, split: Split) -> None:
        self._splits.append(split)
