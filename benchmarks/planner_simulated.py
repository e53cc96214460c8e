"""Rollout time and preemptions with fixed tensor-parallel sizes and with the parallelism planner,
on simulated engines.

    python -m benchmarks.planner_simulated --steps 20

Tail batching on one host of simulated devices (`tasks.simulation`), in the units of the KV cache;
the defaults resemble a quarter of the load of figure 6. Responses get longer from step to step, as
in training. Leaves out the time of rebuilding engines, which is printed as a number of changes: how
long one takes is a matter of the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from tasks.engines.simulation.lengths import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.simulation.figures import PlayedRun
from tasks.simulation.plain import PlainMachine, PlainWorkload
from tasks.simulation.steps import SimulatedRun, play

SIZES = (1, 2, 4, 8)
MACHINE = PlainMachine(
    device_tokens=90_000,
    weights_s=0.006,
    step_s_per_sequence=0.00008,
    prefill_s_per_token=0.00006,
    token_s=0.0,
)
WORK = PlainWorkload(
    longest_tokens=32_000, lengths=LengthModel(median_tokens=1560.0, sigma=1.1), growth=1.04
)
PLANNER = PlannerConfig(enabled=True)


def tail_batching(
    machine: PlainMachine, work: PlainWorkload, batch: BatchConfig, num_steps: int
) -> SimulatedRun:
    """Short and long rounds without a drain, on engines of size 1."""
    policy = TailBatchingConfig(drain=False)
    return SimulatedRun(machine=machine, work=work, policy=policy, batch=batch, num_steps=num_steps)


def variants(run: SimulatedRun) -> Iterator[tuple[str, SimulatedRun]]:
    """The run with fixed sizes, and planned by what is counted alone or with a profile."""
    for size in run.machine.sizes(run.machine.num_devices, SIZES[-1]):
        yield f"size {size}", replace(run, tensor_parallel_size=size)
    yield "planner, rule alone", replace(run, planner=PLANNER, knows_profile=False)
    yield "planner with a profile", replace(run, planner=PLANNER)


def sizes_of(played: PlayedRun) -> list[int]:
    """The tensor-parallel size of every step."""
    return [step.tensor_parallel_size for step in played.steps]


def rows(name: str, played: PlayedRun) -> Iterator[tuple[str, ...]]:
    """Per kind of round: how many, their sizes in order, mean preemptions, mean rollout seconds."""
    for kind in sorted({step.kind for step in played.steps}, reverse=True):
        alike = played.of_kind(kind)
        yield (
            name,
            f"{len(alike.steps)} {kind}",
            " ".join(map(str, sizes_of(alike))),
            f"{alike.mean('num_preemptions'):.0f}",
            f"{alike.mean('rollout_s'):.0f}",
        )
    changes = sum(before != after for before, after in pairwise(sizes_of(played)))
    yield name, "all", f"{changes} changes", "", f"{played.total('rollout_s'):.0f} in total"


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
    for name, run in variants(tail_batching(MACHINE, WORK, batch, options.steps)):
        for row in rows(name, play(run)):
            table.add_row(*row)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
