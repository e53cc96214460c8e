"""What simulated lengths and the host of an engine are calibrated on: RollPacker's Figure 11 at 8k.

    python -m benchmarks.length_calibration                  # as the tables of constants have them
    python -m benchmarks.length_calibration --slope 1.1 1.3 1.5 --likeness 0.2 0.25 --us 10 200

    slope, likeness, us a sequence ─▶ the host_s with which `sync` takes 82 s ─▶ the other rollouts

Every combination: seconds of the eight rollouts, a period of each, beside the published ones, and
the root mean square of the logarithms of their ratios. Slope: of the logarithm of a length above
P75 in the normal score. Likeness: correlation of a prompt's responses. Us: microseconds that a
sequence adds to an engine's step (`host_s_per_sequence`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from statistics import fmean

from rich.console import Console
from rich.table import Table

from flows.experiments.paper.experiment import QUICK, Scale
from flows.experiments.paper.published import FIGURE_11
from flows.experiments.paper.rollout_rounds import swept
from flows.experiments.paper.rollpacker_case import case_of, machine_of
from flows.experiments.paper.setups import BY_CAP, DEVICE
from flows.experiments.paper.variants import SYNC, Variant
from flows.experiments.paper.workload import work_of
from tasks.simulation.hardware import DEVICES
from tasks.simulation.length_law import LONGEST_SCORE, P75_SCORE
from tasks.simulation.steps import play
from tasks.simulation.workloads import MATH

SET_UP = replace(BY_CAP["8k"], tasks=("math",))
MICRO = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A law of lengths and a host."""

    slope: float
    likeness: float
    us: float  # that a sequence adds to a step
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The rollouts of a setting."""

    setting: Setting
    host_s: float
    seconds: dict[str, float]  # by the names of Figure 11

    @property
    def error(self) -> float:
        """Root mean square of the logarithms of ours over published."""
        return math.sqrt(
            fmean(math.log(self.seconds[name] / told) ** 2 for name, told in FIGURE_11.items())
        )


def fit(setting: Setting) -> Fit:
    """The host that `sync` asks for, and the rollouts with it."""
    first_s = DEVICES[DEVICE].host_s
    missing_s = FIGURE_11["sync/1.0"] - rollout_s(SYNC, setting, first_s)
    host_s = first_s + missing_s / SET_UP.cap_tokens  # its longest response reaches the bound
    seconds = {name: rollout_s(variant, setting, host_s) for name, variant in swept()}
    return Fit(setting=setting, host_s=host_s, seconds=seconds)


def rollout_s(variant: Variant, setting: Setting, host_s: float) -> float:
    """The mean of a period."""
    machine, work = machine_of(SET_UP), work_of(SET_UP, variant)
    device = replace(machine.device, host_s=host_s, host_s_per_sequence=setting.us * MICRO)
    law = MATH.lengths
    rise = math.exp(setting.slope * (LONGEST_SCORE - P75_SCORE))
    lengths = replace(
        law,
        longest_ratio=law.p75_tokens / law.median_tokens * rise,
        prompt_share=setting.likeness,
    )
    run = replace(
        case_of(SET_UP, variant, Scale(periods=QUICK, seed=setting.seed)).run,
        machine=replace(machine, device=device),
        work=replace(work, parts=tuple(replace(part, lengths=lengths) for part in work.parts)),
    )
    return fmean(step.rollout_s for step in play(run).planned.steps)


def settings_of(options: argparse.Namespace) -> Iterator[Setting]:
    """Every combination that is asked for."""
    for slope, likeness, us in product(options.slope, options.likeness, options.us):
        yield Setting(slope=slope, likeness=likeness, us=us, seed=options.seed)


def table_of(fits: list[Fit]) -> Table:
    """The best first."""
    table = Table("slope", "likeness", "us", "host ms", "error", *FIGURE_11)
    table.add_row(*["published", *[""] * 4, *(f"{seconds:g}" for seconds in FIGURE_11.values())])
    for found in sorted(fits, key=lambda found: found.error):
        setting = found.setting
        table.add_row(
            f"{setting.slope:g}",
            f"{setting.likeness:g}",
            f"{setting.us:g}",
            f"{1000 * found.host_s:.2f}",
            f"{found.error:.3f}",
            *(f"{found.seconds[name]:.1f}" for name in FIGURE_11),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    law, device = MATH.lengths, DEVICES[DEVICE]
    own = {
        "--slope": law.tail_sigma,
        "--likeness": law.prompt_share,
        "--us": device.host_s_per_sequence / MICRO,
    }
    for name, value in own.items():
        parser.add_argument(name, type=float, nargs="+", default=[round(value, 3)])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        fits = list(pool.map(fit, settings_of(options)))
    Console(width=150).print(table_of(fits))


if __name__ == "__main__":
    main()
