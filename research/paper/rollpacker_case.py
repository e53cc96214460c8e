"""A run of RollPacker's paper on simulated devices: a set-up, a variant, so many steps.

What the papers leave open was decided before any figure was seen: in the baselines a quarter of the
devices is the judge's own (the paper: typically so many), where there are questions for one; 4
processes a device execute programs (the artifact: 32 on a host of 8); a judge beside engines gets a
fifth of a device's arithmetic (the paper: a rollout's use peaks at 80 %).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from research.ablations.policies import policy_of
from research.paper.experiment import Observed, Scale
from research.paper.known_lengths import ShortestFirst
from research.paper.setups import DEVICE, SetUp, reserved_devices, work_of
from research.paper.variants import PaperVariant
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.figures import PlayedStep
from tasks.simulation.hardware import DEVICES
from tasks.simulation.machine import Machine, TrainingCost
from tasks.simulation.protocols import RunWork
from tasks.simulation.shapes import MODELS
from tasks.simulation.simulated_run import NUM_ROWS, SimulatedRun
from tasks.simulation.steps import play
from tasks.simulation.trained_round import ROW_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class RollpackerCase:
    """A set-up under one policy, for so many steps."""

    set_up: SetUp
    variant: PaperVariant
    num_steps: int
    seed: int

    @property
    def label(self) -> str:
        parts = [word for word, is_on in self._parts if is_on]
        tasks = "+".join(self.set_up.tasks)
        return (
            f"{self.set_up.model} {self.set_up.cap_tokens} tokens, {tasks},"
            f" {self.set_up.num_devices} devices: {', '.join(parts) or 'plain'}"
        )

    @property
    def weight(self) -> float:
        responses = self.set_up.prompts * self.set_up.responses
        return self.num_steps * responses * self.variant.eta_p * self.variant.eta_r / 1000

    @property
    def run(self) -> SimulatedRun:
        set_up, variant = self.set_up, self.variant
        return SimulatedRun(
            machine=machine_of(set_up, variant.packs),
            work=self._work,
            policy=policy_of(variant.scheduling),
            batch=BatchConfig(
                prompts_per_step=set_up.prompts, responses_per_prompt=set_up.responses
            ),
            num_steps=self.num_steps,
            tensor_parallel_size=set_up.engine_size,
            planner=PlannerConfig(
                enabled=variant.plans_sizes,
                rule="lengths" if variant.plans_by_lengths else "preemptions",
            ),
            # the paper's sizes are what its profile chose
            knows_profile=variant.plans_by_lengths,
            stream_trainer=StreamTrainerConfig(enabled=variant.streams, rule=variant.stream_rule),
            learner_devices=round(variant.learner_share * set_up.num_devices),
            reserved_devices=reserved_devices(set_up, variant),
            devices_per_rank=math.prod(set_up.train_sizes),
            seed=self.seed,
            num_rows=self._asked_rows,
        )

    def play(self) -> tuple[Observed, ...]:
        return tuple(observed(step) for step in play(self.run).planned.steps)

    @property
    def _asked_rows(self) -> int:
        """Who knows lengths has the rows of all steps in order, and no others."""
        known = self.num_steps * self.set_up.prompts
        return known if self.variant.knows_lengths else NUM_ROWS

    @property
    def _work(self) -> RunWork:
        work = work_of(self.set_up, self.variant)
        if not self.variant.knows_lengths:
            return work
        return ShortestFirst(
            work=work,
            num_rows=self._asked_rows,
            num_responses=self.set_up.responses,
            seed=self.seed,
        )

    @property
    def _parts(self) -> tuple[tuple[str, bool], ...]:
        variant = self.variant
        return (
            (f"eta {variant.eta_p:g} and {variant.eta_r:g}", variant.batches_tails),
            ("rewards last", variant.scores_last),
            ("adaptive limits", variant.adapts_timeouts),
            (f"judge {variant.judge}", variant.judge != "resident"),
            (f"engines of {self.set_up.engine_size}", self.set_up.engine_size > 1),
            ("planner", variant.plans_sizes and not variant.plans_by_lengths),
            ("planner by lengths", variant.plans_by_lengths),
            ("stream trainer", variant.streams and variant.stream_rule == "milestones"),
            ("stream trainer by devices", variant.streams and variant.stream_rule == "devices"),
            (f"{variant.num_levels} levels", variant.num_levels > 2),
            ("discards", variant.discards),
            (
                f"{variant.under_way:.0%} under way, longest first",
                0 < variant.under_way < 1,
            ),
            ("divided", variant.moves_running),
            ("lengths known", variant.knows_lengths),
            ("packed", variant.packs),
            (
                f"async ratio {variant.async_ratio:g} ({variant.at_update}),"
                f" {variant.learner_share or 1:.0%} of the devices train",
                variant.async_ratio > 0,
            ),
            ("no bound on lags", variant.at_deadline == "train_anyway"),
        )


def machine_of(set_up: SetUp, packs: bool = False) -> Machine:
    """The devices of a set-up, with its model on them. packs: whether micro-batches are full rows,
    as our learner makes them; else each is one response, as in the artifact."""
    tensor, pipeline, context = set_up.train_sizes
    return Machine(
        model=MODELS[set_up.model],
        device=DEVICES[DEVICE],
        num_devices=set_up.num_devices,
        training=TrainingCost(
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            micro_batch_tokens=ROW_TOKENS,
            is_one_response=not packs,
            num_logprob_models=set_up.num_logprob_models,
        ),
        sorts_logits=True,  # its artifact samples with top-p 0.99 and top-k 100
        batch_positions=set_up.batch_positions,
    )


def case_of(set_up: SetUp, variant: PaperVariant, scale: Scale) -> RollpackerCase:
    """Whole periods of a variant."""
    return RollpackerCase(
        set_up=set_up,
        variant=variant,
        num_steps=variant.num_steps(scale.periods),
        seed=scale.seed,
    )


def observed(step: PlayedStep) -> Observed:
    """What the figures are made of; `train_s` is all that follows rollout and rewards."""
    figures = {
        "step_s": step.step_s,
        "rollout_s": step.rollout_s,
        "reward_s": step.reward_s,
        "train_s": step.step_s - step.rollout_s - step.reward_s - step.relayout_s,
        "relayout_s": step.relayout_s,
        "engine_size": step.tensor_parallel_size,
        "max_tokens": step.longest_tokens,
        "preemptions": step.num_preemptions,
        "freed": step.num_freed,
        "streamed": step.num_streamed,
        "left_share": step.left_share,
        "num_prompts": len(step.trained),
        "trained_tokens": step.tokens_trained,
    }
    return Observed(kind=step.kind, figures=figures)
