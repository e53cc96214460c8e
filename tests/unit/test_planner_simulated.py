"""The planner's experiment on simulated engines, in small."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.planner_simulated import MACHINE, WORK, rows, sizes_of, tail_batching, variants
from tasks.engines.simulation.lengths import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.simulation.steps import play

SMALL = tail_batching(
    replace(MACHINE, num_devices=2, devices_per_host=2, device_tokens=12_000, weights_tokens=3_000),
    replace(
        WORK, longest_tokens=2_000, growth=1.3, lengths=LengthModel(median_tokens=520, sigma=1.1)
    ),
    BatchConfig(prompts_per_step=4, responses_per_prompt=4),
    num_steps=6,
)


def test_fixed_sizes_stay_and_larger_ones_preempt_less() -> None:
    runs = dict(variants(SMALL))
    small, large = (play(runs[f"size {size}"]) for size in (1, 2))
    assert (set(sizes_of(small)), set(sizes_of(large))) == ({1}, {2})
    assert large.total("num_preemptions") < small.total("num_preemptions")


def test_the_planner_keeps_to_sizes_that_the_machine_has() -> None:
    runs = dict(variants(SMALL))
    chosen, ruled = (play(runs[name]) for name in ("planner with a profile", "planner, rule alone"))
    assert {*sizes_of(chosen), *sizes_of(ruled)} <= {1, 2}
    assert [row[1] for row in rows("planner", chosen)] == ["5 short", "1 long", "all"]
