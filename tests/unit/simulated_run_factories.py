"""Small simulated runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.simulation.plain import PlainMachine
from tasks.simulation.protocols import EVERY_TOKEN, GradientWork
from tasks.simulation.roofline import Roofline
from tasks.simulation.simulated_run import SimulatedRun
from tasks.simulation.workloads import blank_question


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainWorkload:
    """Prompts of one length in a number of domains, log-normal responses (`RunWork`)."""

    longest_tokens: int = 16_000
    num_prompt_tokens: int = 200
    names: tuple[str, ...] = ("any",)  # of the domains, which take turns
    lengths: LengthModel = field(default_factory=LengthModel)
    growth: float = 1.0  # median length of a step over that of the step before
    rewards: SimulatedRewardConfig = field(default_factory=SimulatedRewardConfig)

    def domains(self, num_rows: int) -> Sequence[str]:
        return [self.names[row % len(self.names)] for row in range(num_rows)]

    def prompt_tokens(self, prompt_id: str) -> int:
        return self.num_prompt_tokens

    def question(self, prompt_id: str) -> tuple[int, ...]:
        return blank_question(prompt_id, self.prompt_tokens(prompt_id))

    def writer(self, step: int, seed: int) -> LengthModel:
        median = self.lengths.median_tokens * self.growth ** (step - 1)
        return self.lengths.model_copy(update={"median_tokens": median, "seed": seed})

    def feed(self, machine: Any, seed: int) -> SimulatedFeed:  # Any: judges nothing
        return SimulatedFeed(self.rewards.model_copy(update={"seed": seed}))

    def gradients(self, seed: int) -> GradientWork:
        return EVERY_TOKEN


MACHINE = PlainMachine(
    num_devices=4,
    devices_per_host=4,
    device_tokens=12_000,
    weights_tokens=2_000,
    updating_s=3.0,
    publishing_s=2.0,
    rebuilding_s=5.0,
    freeing_s=0.5,
)
WORK = PlainWorkload(
    longest_tokens=2_000,
    num_prompt_tokens=50,
    names=("a", "b"),
    lengths=LengthModel(median_tokens=150, sigma=1.1),
)
AT_ONCE = SimulatedRewardConfig(median_s=0.0)  # verdicts that take no time
BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=4)


def make_run(**others: Any) -> SimulatedRun:  # Any: fields of SimulatedRun
    """Synchronous steps of 8 prompts x 4 responses on 4 devices, but for what is said."""
    given = {
        "machine": MACHINE,
        "work": WORK,
        "policy": SyncConfig(),
        "batch": BATCH,
        "num_steps": 3,
    }
    return SimulatedRun(**(given | others))


def step_s(
    roofline: Roofline, num_sequences: int, kv_tokens: float, prefill_tokens: float = 0
) -> float:
    """Seconds of an engine step, as the docstring of `roofline` adds them up."""
    num_tokens = num_sequences + prefill_tokens
    return (
        roofline.fixed_s
        + roofline.sequence_s * num_sequences
        + roofline.exchange_s_per_token * num_tokens
        + max(roofline.weights_s, roofline.matrix_s_per_token * num_tokens)
        + roofline.kv_s_per_token * kv_tokens
    )
