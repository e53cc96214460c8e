"""A run of whole steps with workers that come and go, on a virtual clock: rollout, training,
update, publication.

    window for n workers ─▶ round (real driver, router, seeding window) ═ groups ═▶ learner ranks
         ▲                                                                              │
         └── what the step waited for ◀── published: own engines, then workers ◀── update┘

Within a round: window open, own engines and workers generate ─▶ closed, learners train ─▶ round
over ─▶ what is left is trained. Driver, router, policies, dealing of groups and the ledger of costs
are the real ones; engines, learners, workers and verdicts take time and compute nothing. The driver
hands groups out while learners train others, or all when a plain round is over. Leaves out the
release of an engine's memory before its devices train: the artifact keeps no copy of its weights.
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

from artifacts.prices import PriceConfig
from artifacts.records import Group, Span
from artifacts.reports.device_cost import Held, Window, cost_figures, held_seconds
from research.ablations.policies import policy_of
from research.spot.elastic_shapes import SpotShape
from research.spot.simulated_rounds import load_version, round_inputs
from research.spot.spot_traces import Trace
from research.spot.spot_workers import SPOT, SpotWorkers
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.learner.split import Split
from tasks.learner.streaming import StreamedAccumulation
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.scheduling.seeding import Seeding, SeedingConfig, SeedingTimes, SeedingWindow, after_step
from tasks.scheduling.stream_training import (
    DeviceGroup,
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
)
from tasks.simulation.protocols import every_token
from tasks.simulation.trained_round import ROW_TOKENS, SimulatedRank

RESERVED = "reserved"
# dollars a GPU-hour, means over regions of two clouds: 8 H100 on demand 83.79, 2 preemptible 5.32
PRICES = PriceConfig(classes={RESERVED: 83.79 / 8, SPOT: 5.32 / 2})
SEEDING = SeedingConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRun:
    """A simulated trainer, its workers, and what it does with them."""

    shape: SpotShape
    trace: Trace = ()
    # workers of those that are offered: all, or no more than N_prem, as the paper
    holds: Literal["all", "n_prem"] = "all"
    num_steps: int = 10**6
    until_s: float = float("inf")  # no step begins after it
    policy: Policy = field(default_factory=partial(policy_of, {"kind": "sync"}))
    stream_trainer: StreamTrainerConfig = field(default_factory=StreamTrainerConfig)
    windows_by_kind: bool = False  # short and long rounds have windows of their own
    seeds: bool = True  # off: the own engines stop as soon as a worker is there
    notice_s: float = 30.0  # between the announcement that a worker is taken away and its end
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotStep:
    """A step in figures."""

    kind: str  # of its round
    start_s: float
    end_s: float
    tokens: int  # trained, with those of their prompts, as the artifact counts
    num_workers: int  # built ones when it began
    times: SeedingTimes
    worth_holding: float | None  # N_prem
    figures: Mapping[str, float]  # of its cost


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRun:
    """A run in figures."""

    steps: tuple[SpotStep, ...]
    held: tuple[Held, ...]


def play(run: ElasticRun) -> SpotRun:
    """Play the run from its beginning, on a clock of its own."""
    return run_virtual(_Player(run).play())


class _Player:
    def __init__(self, run: ElasticRun) -> None:
        self._run, shape = run, run.shape
        self._batch = BatchConfig(
            prompts_per_step=shape.num_prompts, responses_per_prompt=shape.responses_per_prompt
        )
        self._seedings: defaultdict[str, Seeding] = defaultdict(Seeding)  # by kind of round
        self._state = QueueState()
        self._own = [shape.replica(f"engine-{place}", run.seed) for place in range(shape.num_own)]
        self._lengths: list[int] = []  # of responses of the round before, for projections
        self._domains = ("a",) * 1_000_000

    async def play(self) -> SpotRun:
        run, clock = self._run, asyncio.get_running_loop()
        spot = SpotWorkers(run.shape, run.trace, seed=run.seed, notice_s=run.notice_s)
        following = asyncio.create_task(spot.follow())
        steps: list[SpotStep] = []
        await asyncio.sleep(run.shape.transfer_s)  # as after any publication before this run
        while len(steps) < run.num_steps and clock.time() < run.until_s:
            steps.append(await self._step(len(steps) + 1, spot))
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        spot.close()
        return SpotRun(steps=tuple(steps), held=tuple(spot.held(clock.time())))

    async def _step(self, step: int, spot: SpotWorkers) -> SpotStep:
        run, clock = self._run, asyncio.get_running_loop().time
        began_s, num_workers, changes = clock(), spot.num_ready, spot.num_changes
        plan = self._plan(step)
        kind = plan.kind if run.windows_by_kind else ""  # of rounds with a window in common
        seeding = self._seedings[kind]
        window_s = seeding.window_for(num_workers, SEEDING) if run.seeds else 0.0
        played = _ElasticRound(run, plan, window_s, self._lengths)
        spot.open_round()
        result = await played.play(self._own, spot)
        spot.close_round()
        await asyncio.sleep(run.shape.update_s + run.shape.publish_s)
        await load_version(self._own, step)
        spot.publish(step)
        ended_s = clock()
        times = played.times(
            result,
            ended_s=ended_s,
            num_workers=spot.num_ready,
            is_steady=changes == spot.num_changes,
        )
        self._seedings[kind] = seeding = after_step(seeding, times, SEEDING)
        if run.holds == "n_prem" and seeding.worth_holding is not None:
            spot.hold_at_most(max(1, math.ceil(seeding.worth_holding)))
        self._state = finish_round(self._state, plan, result)
        self._lengths = sorted(
            response.num_sampled
            for response in result.generated
            if response.finish_reason != "aborted"
        )
        tokens = sum(
            run.shape.prompt_tokens + response.generated.num_sampled
            for group in result.groups
            for response in group.responses
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
        return cost_figures(held_s, tokens, window, PRICES)


class _ElasticRound:
    """Plays one round and its training."""

    def __init__(
        self, run: ElasticRun, plan: RoundPlan, window_s: float | None, lengths: list[int]
    ) -> None:
        """window_s: see `SeedingWindow`."""
        self._run, self._plan = run, plan
        own = range(run.shape.num_own)
        groups = [
            DeviceGroup(engines=(f"engine-{place}",), learners=(str(place),)) for place in own
        ]
        alone = StreamTrainer(run.stream_trainer, groups, plan.accept_prompts, lengths)
        self._window = SeedingWindow(window_s, groups, alone)
        self._spans: list[Span] = []
        self._ranks = [
            SimulatedRank(
                f"learner-{place}",
                (f"own:{place}",),
                lambda parts: run.shape.train_s_per_token * every_token(parts),
                self._spans,
            )
            for place in own
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
                self._run.policy.scheduler(self._plan),
                engines,
                self._run.shape.longest_tokens,
                seed=self._run.seed,
                attempt=self._plan.step,
                on_accept=accept,
                on_freed=free,
                stream_trainer=self._window,
                elastic_workers=elastic_workers,
                report_tokens=self._run.shape.report_tokens,
            )
            result = await drive_round(inputs)
            self._closed_s = self._clock()
            if not self._freed_s:  # else groups were handed out while others were trained
                num_responses = sum(len(group.responses) for group in result.groups)
                await asyncio.sleep(self._run.shape.move_s * num_responses)
            await accumulation.finish(_unrecorded)
        return result

    def times(
        self, result: RoundResult, *, ended_s: float, num_workers: int, is_steady: bool
    ) -> SeedingTimes:
        """The times that the step measured; `remote_s` is that of all workers together, from the
        first request to the last response."""
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
    """Drop the split: nobody replays a simulated step."""
