"""Whole RL steps on a virtual clock.

    plan ─▶ relayout ─▶ round ═ groups ═▶ gradients ─▶ update ─▶ publish ─▶ planner, queue ─▶ plan

    run = SimulatedRun(machine=..., work=..., policy=..., batch=..., num_steps=40)
    played = play(run)

All decisions are made by the parts of a real run. Engines, rewards, learners, updates and
publications compute nothing and take the seconds that machine and work give (`protocols`).
Deterministic by seed. Leaves out elastic workers and processes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from artifacts.records import Prompt, Response, Span
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundInputs
from tasks.rounds.report import RolloutReport
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.layout_planner import expected_demand, seen_demand
from tasks.scheduling.parallelism import PlannerState, RoundReading
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.scheduling.stream_training import HISTORY_ROUNDS, StreamTrainer
from tasks.simulation.cluster import Cluster, device_names, spans_on
from tasks.simulation.figures import PlayedRun, PlayedStep, played_step, record_of
from tasks.simulation.overlapped import play_overlapped_steps
from tasks.simulation.simulated_run import RoundFeed, SimulatedRun
from tasks.simulation.trained_round import SimulatedGradients, update_and_publish


def play(run: SimulatedRun) -> PlayedRun:
    """Play the run to its end on a virtual clock of its own. Raises ValueError for steps that
    overlap on devices which rollout and training would have to share."""

    async def steps() -> tuple[PlayedStep, ...]:
        return await (play_overlapped_steps(run) if run.overlaps else _Player(run).play())

    return PlayedRun(steps=run_virtual(steps()))


class _Player:
    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
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
        while (plan := self._run.planned(self._state, len(steps) + 1)) is not None:
            steps.append(await self._step(plan))
        return tuple(steps)

    async def _step(self, plan: RoundPlan) -> PlayedStep:
        run, start_s, cluster = self._run, self._clock(), self._cluster
        prompts = run.prompts(plan.candidates)
        prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts.values()) // len(prompts)
        cluster.open_step(plan.step, run.seed)
        relayout = await self._arrange(plan, prompt_tokens)
        async with asyncio.TaskGroup() as tasks:
            gradients = SimulatedGradients(run, cluster, tasks, plan.accept_prompts)
            result = await drive_round(self._inputs(plan, prompts, gradients))
            record = await record_of(plan, result, cluster)
            await gradients.stop_engines()
            training = await gradients.finish()
        published = await update_and_publish(cluster, run.machine, plan.step)
        self._remember(plan, record.report, prompt_tokens)
        self._carried = result.carried_responses
        spans = (*relayout, *record.spans, *training.spans, *published)
        devices, end_s = cluster.placement.devices, self._clock()
        return played_step(record, training, spans, devices, start_s, end_s)

    def _inputs(
        self, plan: RoundPlan, prompts: Mapping[str, Prompt], gradients: SimulatedGradients
    ) -> RoundInputs:
        run, cluster = self._run, self._cluster
        return run.round_inputs(
            cluster,
            self._feed,
            plan,
            prompts,
            recorded=self._carried,
            seed=run.seed,
            on_accept=gradients.accept,
            on_freed=gradients.free,
            stream_trainer=StreamTrainer(
                run.stream_trainer,
                cluster.groups,
                plan.accept_prompts,
                [tokens for held in self._history for tokens in held],
                devices_per_engine=cluster.size,
            ),
        )

    async def _arrange(self, plan: RoundPlan, prompt_tokens: int) -> tuple[Span, ...]:
        """Rebuild the engines for the layout of a round. Returns the spans of that."""
        old, size = self._cluster.size, self._size(plan, prompt_tokens)
        if size == old:
            return ()
        start_s = self._clock()
        await asyncio.sleep(self._run.machine.relayout_s(old, size) if old else 0.0)
        self._cluster.rebuild(size, plan.step - 1)
        devices = device_names(self._run.placement.rollout)
        return spans_on(devices, "engines", "wake", start_s, self._clock())

    def _size(self, plan: RoundPlan, prompt_tokens: int) -> int:
        """Returns the tensor-parallel size of the engines of a round."""
        if not (self._run.planner.enabled and plan.layout):
            return self._cluster.size or self._run.tensor_parallel_size
        shape = self._run.policy.algebra(self._run.batch).shape_of(plan.layout)
        demand = expected_demand(shape, prompt_tokens, self._run.work.longest_tokens)
        self._planner = self._layouts.begun(self._planner, plan.layout, demand)
        return self._planner.layouts[plan.layout].size

    def _remember(self, plan: RoundPlan, report: RolloutReport, prompt_tokens: int) -> None:
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
        demand = seen_demand(num_responses, prompt_tokens, num_tokens, report.held_tokens)
        self._planner = self._layouts.after(self._planner, reading, demand)
