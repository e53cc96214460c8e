"""The training of a simulated step: gradients, update and publication.

    driver ═ accepted groups ═▶ ranks that the stream trainer freed
       │ round over
       └─▶ devices go over to training ─▶ groups that are left, dealt to all ranks
              ─▶ update ─▶ publish

Ranks take time and compute nothing; the dealing is the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from artifacts.records import Group, Running, Span
from tasks.learner.dealing import GroupPart
from tasks.learner.reports import AccumulateReport
from tasks.learner.split import Split
from tasks.learner.streaming import StreamedAccumulation, tokens_of
from tasks.scheduling.stream_training import ScaleDown
from tasks.simulation.cluster import Cluster, device_names, spans_on
from tasks.simulation.protocols import GradientWork, MachineCosts, every_token
from tasks.simulation.simulated_run import SimulatedRun

ROW_TOKENS = 16_384  # of a full learner row


@dataclass(slots=True)
class SimulatedRank:
    """A learner rank that takes time and computes nothing (`GradientRank`)."""

    name: str
    devices: Sequence[str]  # that compute together
    seconds: Callable[[Sequence[GroupPart]], float]  # that they take for the parts of a call
    spans: list[Span]  # the rank appends its work here
    num_tokens: Callable[[Sequence[GroupPart]], int] = every_token  # that it computes

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        clock = asyncio.get_running_loop().time
        start_s = clock()
        await asyncio.sleep(self.seconds(parts))
        self.spans += spans_on(self.devices, self.name, "train", start_s, clock())
        return AccumulateReport(
            num_groups=sum(part.is_first for part in parts),
            num_tokens_computed=self.num_tokens(parts),
        )


def training_s(
    machine: MachineCosts, work: GradientWork, num_devices: int, parts: Sequence[GroupPart]
) -> float:
    """Returns the seconds in which so many devices together train these parts. A response that is a
    micro-batch by itself has its prompt with it, and takes as long as the machine says at least."""
    token_s, least_s = machine.train_s_per_token(), machine.train_s_per_response()
    if not least_s:
        return token_s * work.num_tokens(parts) / num_devices
    alone = (GroupPart(group=part.group, places=(at,)) for part in parts for at in part.places)
    return sum(max(least_s, token_s * tokens_of(part)) for part in alone) / num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTraining:
    """A step's gradients: which rank trained what, and when."""

    split: Split  # which rank trained what
    num_streamed: int  # groups of which something was trained before the round was over
    spans: Sequence[Span]  # of training, and of devices that went over to it


class SimulatedGradients:
    """Accumulates the gradients of one step on the ranks of a cluster."""

    def __init__(
        self, run: SimulatedRun, cluster: Cluster, tasks: asyncio.TaskGroup, num_groups: int
    ) -> None:
        self._run, self._cluster = run, cluster
        self._spans: list[Span] = []
        self._freed: set[str] = set()  # engines that have stopped
        work = run.work.gradients(run.seed)
        ranks = [
            SimulatedRank(
                name,
                devices,
                partial(training_s, run.machine, work, len(devices)),
                self._spans,
                work.num_tokens,
            )
            for name, devices in cluster.placement.ranks.items()
        ]
        self._places = {rank.name: place for place, rank in enumerate(ranks)}
        self._accumulation = StreamedAccumulation(
            ranks, tasks, num_groups, ROW_TOKENS, flat_costs=work.flat_costs
        )

    async def accept(self, group: Group) -> None:
        await self._accumulation.offer([group])

    def begin(self, learners: Iterable[str]) -> None:
        """Let these learners, whose devices are free, train groups as they come."""
        for learner in learners:
            self._accumulation.free(self._places[learner])

    async def free(self, decision: ScaleDown) -> None:
        """Switch devices to training while the round goes on."""
        await self._stop(decision.engines)
        self.begin(decision.learners)

    async def stop_engines(self) -> None:
        """Switch all devices that still generate to training, where the same devices do both."""
        if self._cluster.placement.is_colocated:
            await self._stop(set(self._cluster.devices) - self._freed)

    async def finish(self) -> SimulatedTraining:
        """Train the remaining groups on all ranks."""
        splits: list[Split] = []

        async def record(split: Split) -> None:
            splits.append(split)

        await self._accumulation.finish(record)
        if self._accumulation.num_streamed and self._cluster.placement.is_colocated:
            await asyncio.sleep(self._run.machine.reload_s())
        return SimulatedTraining(
            split=splits[0], num_streamed=self._accumulation.num_streamed, spans=self._spans
        )

    async def _stop(self, engines: Collection[str]) -> None:
        self._freed.update(engines)
        clock = asyncio.get_running_loop().time
        start_s, free_s = clock(), self._run.machine.free_s(self._cluster.size)
        if not (engines and free_s):
            return
        await asyncio.sleep(free_s)
        for engine in sorted(engines):
            devices = self._cluster.devices[engine]
            self._spans += spans_on(devices, engine, "sleep", start_s, clock())


async def update_and_publish(
    cluster: Cluster, machine: MachineCosts, version: int, running: Running = Running.DROP
) -> tuple[Span, ...]:
    """Make new weights of complete gradients and load them everywhere; returns the spans."""
    clock, placement = asyncio.get_running_loop().time, cluster.placement
    start_s = clock()
    await asyncio.sleep(machine.update_s())
    updated_s = clock()
    await asyncio.sleep(machine.publish_s(cluster.size))
    await cluster.load(version, running)
    learners = device_names(placement.learner)
    return (
        *spans_on(learners, "learner", "update", start_s, updated_s),
        *spans_on(placement.devices, "learner", "publish", updated_s, clock()),
    )
