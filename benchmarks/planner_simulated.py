"""Rollout time and preemptions with fixed tensor-parallel sizes and with the parallelism planner,
on simulated engines.

    python -m benchmarks.planner_simulated --steps 20

Tail batching on one host of simulated devices: the real rounds, router and driver, and the real
planner, told what the simulated engines count. Responses get longer from step to step, as in
training. A replica of size t has the memory of t devices less one copy of the weights; a decode
step takes the time to read its share of the weights, and more for the exchange the more devices
there are. Leaves out the time of rebuilding engines, which is printed as a number of changes: how
long one takes is a matter of the machine.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from benchmarks.simulated_round import (
    PROMPT_TOKENS,
    make_engines,
    play_rounds,
    round_inputs,
)
from flows.engine_layout import BOUND_PER_MEAN
from tasks.engines.base import EngineStats
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.parallelism import (
    LayoutState,
    PlannerState,
    RoundReading,
    observe,
)
from tasks.scheduling.policies.base import Policy, Turn
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.throughput import (
    Demand,
    ThroughputPoint,
    ThroughputProfile,
    best_size,
    not_slower,
)

SIZES = (1, 2, 4, 8)
POLICY: Policy = TailBatchingConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One host, in the units of the KV cache; the defaults resemble a quarter of the load of figure
    6."""

    num_devices: int = 8
    device_tokens: int = 90_000  # tokens whose KV would fill a device
    weights_tokens: int = 25_000  # tokens whose KV would take the room of the weights
    weights_s: float = 0.006  # reading the weights once from one device, which a decode step does
    fixed_s: float = 0.003  # of a decode step, whatever the size
    # of a decode step, for each doubling of the size: what the devices of a replica tell each other
    exchange_s: float = 0.0035
    median_tokens: float = 1500.0  # of the responses of the first step
    growth: float = 1.04  # of that median from step to step
    longest_tokens: int = 32_000

    def engines(self, size: int, step: int) -> list[SimulatedEngine]:
        """Fresh replicas of this size, as they are after the weights of a step were loaded."""
        lengths = LengthModel(median_tokens=self.median_tokens * self.growth**step, sigma=1.1)
        config = self.engine(size).model_copy(update={"lengths": lengths})
        return make_engines(self.num_devices // size, config)

    def engine(self, size: int) -> SimulatedEngineConfig:
        """A replica of this size."""
        return SimulatedEngineConfig(
            step_s=self.fixed_s + self.weights_s / size + self.exchange_s * math.log2(size),
            step_s_per_sequence=0.00008 / size,
            prefill_s_per_token=0.00006 / size,
            kv_capacity_tokens=size * self.device_tokens - self.weights_tokens,
        )

    def profile(self) -> ThroughputProfile:
        """What calibration would measure."""
        replicas = {size: self.engine(size) for size in SIZES if self.num_devices % size == 0}
        points = tuple(
            ThroughputPoint(
                size=size,
                batch=batch,
                length=PROMPT_TOKENS,
                prefill_tokens_per_s=1 / replica.prefill_s_per_token,
                decode_tokens_per_s=batch
                / (replica.step_s + replica.step_s_per_sequence * (batch - 1)),
            )
            for size, replica in replicas.items()
            for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        )
        room = {size: replica.kv_capacity_tokens for size, replica in replicas.items()}
        return ThroughputProfile(
            model="simulated", device="simulated", kv_tokens=room, points=points
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRound:
    """A round and what it took."""

    layout: str
    size: int
    num_preemptions: int
    rollout_s: float


def first_sizes(machine: Machine, batch: BatchConfig) -> PlannerState:
    """The planner's own choice for every kind of round, from what calibration would measure."""
    profile, mean = machine.profile(), machine.longest_tokens // BOUND_PER_MEAN
    demands = {
        shape.kind: Demand(
            num_responses=shape.launch_responses, prompt_tokens=PROMPT_TOKENS, response_tokens=mean
        )
        for shape in POLICY.algebra(batch).rounds
    }
    sizes = {
        kind: best_size(profile, profile.sizes, machine.num_devices, demand)
        for kind, demand in demands.items()
    }
    return PlannerState(layouts={kind: LayoutState(size=size) for kind, size in sizes.items()})


def fixed_sizes(batch: BatchConfig, size: int) -> PlannerState:
    """The same size for every kind of round."""
    kinds = [shape.kind for shape in POLICY.algebra(batch).rounds]
    return PlannerState(layouts=dict.fromkeys(kinds, LayoutState(size=size)))


async def play_run(
    machine: Machine,
    batch: BatchConfig,
    num_steps: int,
    planner: PlannerState,
    plans: bool,
    profiled: bool,
) -> list[PlayedRound]:
    """The rounds of a run without its drain; after each the planner may change the size of the next
    of its kind, if it plans at all.

    profiled: whether it knows the profile, and so which sizes are slower, or follows the paper's
    rule alone.
    """
    domains = ("a",) * (num_steps * 2 * batch.prompts_per_step)
    engines: list[SimulatedEngine] = []

    def next_plan(state: QueueState, step: int) -> RoundPlan | None:
        if step > num_steps:
            return None
        turn = Turn(
            state=state, batch=batch, step=step, num_steps=num_steps, domains=domains, seed=0
        )
        return POLICY.plan_round(turn)

    async def play(plan: RoundPlan) -> RoundResult:
        engines[:] = machine.engines(planner.layouts[plan.layout].size, plan.step)
        longest = machine.longest_tokens
        inputs = round_inputs(plan, POLICY.scheduler(plan), engines, longest, versions=range(1))
        return await drive_round(inputs)

    played: list[PlayedRound] = []
    async for simulated in play_rounds(next_plan, play):
        plan = simulated.plan
        size = planner.layouts[plan.layout].size
        readings = [await engine.stats() for engine in engines]
        played.append(
            PlayedRound(
                layout=plan.layout,
                size=size,
                num_preemptions=sum(reading.num_preemptions for reading in readings),
                rollout_s=simulated.rollout_s,
            )
        )
        if plans:
            profile = machine.profile() if profiled else None
            planner = replanned(planner, machine, plan, size, readings, profile)
    return played


def replanned(
    planner: PlannerState,
    machine: Machine,
    plan: RoundPlan,
    size: int,
    readings: Sequence[EngineStats],
    profile: ThroughputProfile | None,
) -> PlannerState:
    """The planner after a round on engines of this size, which counted this."""
    counted = RoundReading(
        layout=plan.layout,
        num_preemptions=sum(reading.num_preemptions for reading in readings),
        kv_usage_max=max(reading.kv_usage_max for reading in readings),
    )
    if profile is None:
        return observe(planner, counted, machine.profile().sizes, {})
    num_responses = len(plan.prompts) * plan.launch_per_prompt
    mean = sum(reading.tokens_generated for reading in readings) // num_responses
    demand = Demand(num_responses=num_responses, prompt_tokens=PROMPT_TOKENS, response_tokens=mean)
    sizes = not_slower(profile, profile.sizes, size, machine.num_devices, demand)
    return observe(planner, counted, sizes, profile.kv_tokens)


def rows(name: str, played: Sequence[PlayedRound]) -> list[tuple[str, ...]]:
    """Per kind of round: how many, their sizes in order, mean preemptions, mean rollout seconds."""
    by_kind: dict[str, list[PlayedRound]] = defaultdict(list)
    for simulated in played:
        by_kind[simulated.layout].append(simulated)
    return [
        (
            name,
            f"{len(alike)} {kind}",
            " ".join(str(simulated.size) for simulated in alike),
            f"{sum(simulated.num_preemptions for simulated in alike) / len(alike):.0f}",
            f"{sum(simulated.rollout_s for simulated in alike) / len(alike):.0f}",
        )
        for kind, alike in sorted(by_kind.items(), reverse=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=20, help="steps of each run (default: %(default)s)"
    )
    parser.add_argument(
        "--prompts", type=int, default=32, help="prompts per step (default: %(default)s)"
    )
    parser.add_argument(
        "--responses", type=int, default=8, help="responses per prompt (default: %(default)s)"
    )
    options = parser.parse_args()
    batch = BatchConfig(prompts_per_step=options.prompts, responses_per_prompt=options.responses)
    table = Table("engines", "rounds", "sizes", "preemptions", "rollout s", box=None)
    runs = [(f"size {size}", fixed_sizes(batch, size), False, False) for size in SIZES]
    runs += [
        ("planner, rule alone", fixed_sizes(batch, 1), True, False),
        ("planner with a profile", first_sizes(Machine(), batch), True, True),
    ]
    for name, first, plans, profiled in runs:
        played = run_virtual(play_run(Machine(), batch, options.steps, first, plans, profiled))
        for row in rows(name, played):
            table.add_row(*row)
        changes = sum(before.size != after.size for before, after in pairwise(played))
        table.add_row(
            name,
            "all",
            f"{changes} changes",
            "",
            f"{sum(simulated.rollout_s for simulated in played):.0f} in total",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
