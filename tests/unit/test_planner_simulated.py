"""The planner's experiment on simulated engines, in small."""

from __future__ import annotations

from benchmarks.planner_simulated import (
    SIZES,
    Machine,
    PlayedRound,
    first_sizes,
    fixed_sizes,
    play_run,
    rows,
)
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.parallelism import PlannerState

BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=4)
MACHINE = Machine(
    num_devices=2,
    device_tokens=12_000,
    weights_tokens=3_000,
    median_tokens=400.0,
    growth=1.3,
    longest_tokens=2_000,
)


def played(first: PlannerState, plans: bool, profiled: bool = False) -> list[PlayedRound]:
    return run_virtual(play_run(MACHINE, BATCH, 6, first, plans, profiled))


def test_the_same_run_comes_out_the_same() -> None:
    assert played(fixed_sizes(BATCH, 1), plans=True) == played(fixed_sizes(BATCH, 1), plans=True)


def test_fixed_sizes_stay_and_larger_ones_preempt_less() -> None:
    small, large = (played(fixed_sizes(BATCH, size), plans=False) for size in (1, 2))
    assert {one.size for one in small} == {1}
    assert sum(one.num_preemptions for one in large) < sum(one.num_preemptions for one in small)


def test_the_planner_keeps_to_sizes_that_the_machine_has() -> None:
    chosen = played(first_sizes(MACHINE, BATCH), plans=True, profiled=True)
    ruled = played(fixed_sizes(BATCH, 1), plans=True)
    assert {one.size for one in [*chosen, *ruled]} <= set(SIZES[:2])
    assert [row[1] for row in rows("planner", chosen)] == ["5 short", "1 long"]
