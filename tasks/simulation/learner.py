"""Learner ranks that take time and compute nothing, and what becomes of their gradients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from artifacts.records import Running, Span
from tasks.learner.dealing import GroupPart
from tasks.learner.reports import AccumulateReport
from tasks.learner.split import Split
from tasks.simulation.cluster import Cluster, device_names, spans_on
from tasks.simulation.gradient_work import GradientWork, every_token
from tasks.simulation.seams import MachineCosts

ROW_TOKENS = 16_384  # of a full learner row


@dataclass(slots=True)
class SimulatedRank:
    """A learner rank that takes time by the token that it computes (`GradientRank`)."""

    name: str
    devices: Sequence[str]  # that compute together
    s_per_token: float
    spans: list[Span]  # where it notes what it did
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
    """The gradients of a step, as they came about."""

    split: Split  # which rank trained what
    num_streamed: int  # groups of which something was trained before the round was over
    spans: Sequence[Span]  # of training, and of devices that went over to it


def ranks_of(
    cluster: Cluster, machine: MachineCosts, work: GradientWork, spans: list[Span]
) -> list[SimulatedRank]:
    """The learner ranks of a cluster; what they do is noted among the spans."""
    return [
        SimulatedRank(
            name, devices, machine.train_s_per_token() / len(devices), spans, work.num_tokens
        )
        for name, devices in cluster.placement.ranks.items()
    ]


async def update_and_publish(
    cluster: Cluster, machine: MachineCosts, version: int, running: Running = Running.DROP
) -> tuple[Span, ...]:
    """New weights from complete gradients, and into every engine; what that took."""
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
