"""One round of an elastic step and the gradients of its groups, with what seeding learns from.

    window open: own engines and workers generate ──▶ closed: learners train ──▶ round over ──▶ rest

Leaves out what comes before and after it (`elastic_run`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from artifacts.records import Group, Span
from research.spot.elastic_shapes import SpotShape
from research.spot.spot_workers import SpotWorkers
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.learner.split import Split
from tasks.learner.streaming import StreamedAccumulation
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundResult
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.device_groups import DeviceGroup
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.seeding import SeedingTimes
from tasks.scheduling.seeding_window import SeedingWindow
from tasks.scheduling.stream_training import ScaleDown, StreamTrainer, StreamTrainerConfig
from tasks.simulation.learner import SimulatedRank
from tasks.simulation.simulated_round import round_inputs

ROW_TOKENS = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRoundRules:
    """What an elastic round goes by."""

    shape: SpotShape
    plan: RoundPlan
    scheduler: RoundScheduler  # fresh
    window_s: float | None  # see `seeding.is_over`
    stream_trainer: StreamTrainerConfig  # as long as the window is open
    balancing: BalancingConfig  # what moves between engines beside workers
    lengths: list[int]  # of responses of the round before, for its projections
    seed: int


class ElasticRound:
    """Plays one round, and its training."""

    def __init__(self, rules: ElasticRoundRules) -> None:
        self._rules, self._plan = rules, rules.plan
        groups = [
            DeviceGroup(engines=(f"engine-{place}",), learners=(str(place),))
            for place in range(rules.shape.num_own)
        ]
        alone = StreamTrainer(
            rules.stream_trainer, groups, rules.plan.accept_prompts, rules.lengths
        )
        self._window = SeedingWindow(rules.window_s, groups, alone)
        self._spans: list[Span] = []
        self._ranks = [
            SimulatedRank(
                f"learner-{place}", (f"own:{place}",), rules.shape.train_s_per_token, self._spans
            )
            for place in range(rules.shape.num_own)
        ]
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock()
        self._freed_s: list[float] = []  # when each learner became free in mid-round
        self._closed_s = self._began_s

    async def play(
        self, engines: list[SimulatedEngine], elastic_workers: SpotWorkers
    ) -> RoundResult:
        async with asyncio.TaskGroup() as tasks:
            accumulation = StreamedAccumulation(
                self._ranks, tasks, self._plan.accept_prompts, ROW_TOKENS, flat_costs=True
            )

            async def accept(group: Group) -> None:
                await accumulation.offer([group])

            async def free(decision: ScaleDown) -> None:
                for rank in decision.learners:
                    self._freed_s.append(self._clock())
                    accumulation.free(int(rank))

            inputs = round_inputs(
                self._plan,
                self._rules.scheduler,
                engines,
                self._rules.shape.longest_tokens,
                seed=self._rules.seed,
                attempt=self._plan.step,
                on_accept=accept,
                on_freed=free,
                stream_trainer=self._window,
                elastic_workers=elastic_workers,
                balancing=self._rules.balancing,
                report_tokens=self._rules.shape.report_tokens,
            )
            result = await drive_round(inputs)
            self._closed_s = self._clock()
            await accumulation.finish(_unrecorded)
        return result

    def times(
        self, result: RoundResult, *, ended_s: float, num_workers: int, is_steady: bool
    ) -> SeedingTimes:
        """What the step measured. The workers' time is that of all of them together: from the first
        request to the last response."""
        freed_s, num_ranks = self._freed_s, len(self._ranks)
        window_ends_s = sum(freed_s) / len(freed_s) if freed_s else self._closed_s
        early_s = sum(
            max(0.0, min(span.end_s, self._closed_s) - span.start_s) for span in self._spans
        )
        remote = [
            response
            for response in (*result.generated, *result.migrated)
            if response.engine in result.joined
        ]
        first_s = min((response.submitted_s for response in remote), default=self._began_s)
        last_s = max((response.finished_s for response in remote), default=self._began_s)
        return SeedingTimes(
            window_s=window_ends_s - self._began_s,
            train_wait_s=max(0.0, self._closed_s - window_ends_s - early_s / num_ranks),
            remote_wait_s=ended_s - last_s,
            remote_s=last_s - first_s,
            train_s=sum(span.end_s - span.start_s for span in self._spans) / num_ranks,
            num_own=num_ranks,
            num_workers=num_workers,
            is_steady=is_steady,
        )


async def _unrecorded(split: Split) -> None:
    """Nobody replays a simulated step."""
