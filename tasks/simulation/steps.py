"""Whole RL steps on a virtual clock.

    plan ─▶ relayout ─▶ round ═ groups ═▶ gradients ─▶ update ─▶ publish ─▶ planner, queue ─▶ plan

    run = SimulatedRun(machine=..., work=..., policy=..., batch=..., num_steps=40)
    played = play(run)

All decisions are made by the parts of a real run: the policy and its schedulers, the driver and its
router, the stream trainer, the dealing of groups, the parallelism planner, the queue of prompts.
Engines, rewards, learners, updates and publications compute nothing and take the seconds that
machine and work give (`protocols`). The policy decides when rewards begin (`reward_timing`).
Deterministic by seed. Leaves out elastic workers and processes.
"""

from __future__ import annotations

import asyncio
from collections import deque

from artifacts.records import Response, Span
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.report import RolloutReport, round_report
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.layout_planner import expected_demand, seen_demand
from tasks.scheduling.parallelism import PlannerState, RoundReading
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.scheduling.stream_training import HISTORY_ROUNDS
from tasks.simulation.cluster import Cluster, device_names, spans_on
from tasks.simulation.figures import (
    PlayedRun,
    PlayedStep,
    RoundRecord,
    StepWindow,
    played_step,
    reward_spans,
    trained_groups,
)
from tasks.simulation.overlapped import play_overlapped_steps
from tasks.simulation.reward_feed import RoundFeed
from tasks.simulation.simulated_run import Prompts, SimulatedRun, prompts_of
from tasks.simulation.trained_round import RoundRules, TrainedRound, update_and_publish

__all__ = ["SimulatedRun", "play"]


def play(run: SimulatedRun) -> PlayedRun:
    """Play the run to its end on a virtual clock of its own. Raises ValueError for steps that
    overlap on devices which rollout and training would have to share."""
    return run_virtual(_play(run))


async def _play(run: SimulatedRun) -> PlayedRun:
    steps = await (play_overlapped_steps(run) if run.overlaps else _Player(run).play())
    return PlayedRun(steps=steps, period_steps=run.policy.algebra(run.batch).period_steps)


class _Player:
    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._domains = run.domains
        self._feed = RoundFeed(run.work.feed(run.machine, run.seed))
        self._cluster = Cluster(run.machine, run.work, run.placement)
        self._layouts = run.layouts
        self._planner = PlannerState()
        self._state = QueueState()
        self._carried: tuple[Response, ...] = ()  # by the last round, to be continued
        self._history: deque[tuple[int, ...]] = deque(maxlen=HISTORY_ROUNDS)
        self._clock = asyncio.get_running_loop().time

    async def play(self) -> tuple[PlayedStep, ...]:
        steps: list[PlayedStep] = []
        while (plan := self._plan(len(steps) + 1)) is not None:
            steps.append(await self._step(plan))
        return tuple(steps)

    def _plan(self, step: int) -> RoundPlan | None:
        turn = PlanningInputs(
            state=self._state,
            batch=self._run.batch,
            step=step,
            num_steps=self._run.num_steps,
            domains=self._domains,
            seed=None,
        )
        return self._run.policy.plan_round(turn)

    async def _step(self, plan: RoundPlan) -> PlayedStep:
        start_s, cluster = self._clock(), self._cluster
        prompts = prompts_of(self._run.work, plan.candidates)
        cluster.open_step(plan.step, self._run.seed)
        relayout = await self._arrange(plan, prompts)
        num_before = await cluster.tokens_generated()
        trained = await TrainedRound(self._rules(plan, prompts), cluster).play()
        report = round_report(
            trained.result, trained.readings, cluster.devices, is_evaluation=False
        )
        num_generated = await cluster.tokens_generated() - num_before
        published = await update_and_publish(cluster, self._run.machine, plan.step)
        self._remember(plan, report, prompts)
        self._carried = trained.result.carried_responses
        record = RoundRecord(
            plan=plan,
            report=report,
            groups=trained_groups(trained.result.groups),
            tensor_parallel_size=cluster.size,
            num_generated=num_generated,
        )
        spans = (*relayout, *report.spans, *reward_spans(trained.result.scores))
        window = StepWindow(
            spans=(*spans, *trained.training.spans, *published),
            devices=cluster.placement.devices,
            start_s=start_s,
            end_s=self._clock(),
        )
        return played_step(record, trained.training, window)

    async def _arrange(self, plan: RoundPlan, prompts: Prompts) -> tuple[Span, ...]:
        """Rebuild the engines for the layout of a round. Returns the spans of that, none if the
        size stays."""
        old, size = self._cluster.size, self._size(plan, prompts)
        if size == old:
            return ()
        start_s = self._clock()
        await asyncio.sleep(self._run.machine.relayout_s(old, size) if old else 0.0)
        await self._cluster.rebuild(size, plan.step - 1)
        devices = device_names(self._run.placement.rollout)
        return spans_on(devices, "engines", "wake", start_s, self._clock())

    def _size(self, plan: RoundPlan, prompts: Prompts) -> int:
        """Returns the tensor-parallel size of the engines of a round."""
        if not (self._run.planner.enabled and plan.layout):
            return self._cluster.size or self._run.tensor_parallel_size
        shape = self._run.policy.algebra(self._run.batch).shape_of(plan.layout)
        demand = expected_demand(shape, mean_tokens(prompts), self._run.work.longest_tokens)
        self._planner = self._layouts.begun(self._planner, plan.layout, demand)
        return self._planner.layouts[plan.layout].size

    def _rules(self, plan: RoundPlan, prompts: Prompts) -> RoundRules:
        run = self._run
        self._feed.open_round()
        return RoundRules(
            machine=run.machine,
            plan=plan,
            scheduler=run.watch(plan, run.policy.scheduler(plan)),
            prompts=prompts,
            recorded=self._carried,
            feed=self._feed,
            gradients=run.work.gradients(run.seed),
            longest_tokens=run.work.longest_tokens,
            stream_trainer=run.stream_trainer,
            balancing=run.balancing,
            history=[tokens for held in self._history for tokens in held],
            seed=run.seed,
        )

    def _remember(self, plan: RoundPlan, report: RolloutReport, prompts: Prompts) -> None:
        """Update the state from which the next steps are planned."""
        self._state = finish_round(self._state, plan, report)
        self._history.append(report.held_tokens)
        if not (self._run.planner.enabled and plan.layout):
            return
        reading = RoundReading(
            layout=plan.layout,
            num_preemptions=report.num_preemptions,
            kv_usage_max=report.kv_usage_max,
        )
        num_responses = len(plan.prompts) * plan.launch_per_prompt
        num_tokens = sum(report.tokens.values())
        demand = seen_demand(num_responses, mean_tokens(prompts), num_tokens, report.held_tokens)
        self._planner = self._layouts.after(self._planner, reading, demand)


def mean_tokens(prompts: Prompts) -> int:
    """Returns the mean length of a round's prompts in tokens."""
    return sum(len(prompt.token_ids) for prompt in prompts.values()) // len(prompts)
