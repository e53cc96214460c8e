"""Which assumption of `roll_flash_simulated` its headline hangs on.

    python -m benchmarks.roll_flash_assumptions

One of them is changed at a time, and synchronous and asynchronous steps are simulated anew, at the
published async ratio of 2. What comes nearest to the published speed-up need not be what the paper
had: several changes give it.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from benchmarks.roll_flash_simulated import HEADLINE
from flows.experiments.paper.flash_setting import SCALE, Setting, step_s
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.sync import SyncConfig

ASYNC_RATIO = 2.0
ASSUMED = Setting()
CHANGED: dict[str, tuple[Setting, AsynchronousConfig]] = {
    name: (setting, AsynchronousConfig(async_ratio=ASYNC_RATIO))
    for name, setting in {
        "none": ASSUMED,
        "lengths: sigma 0.6 for 0.8": replace(ASSUMED, sigma=0.6),
        "lengths: sigma 1.0": replace(ASSUMED, sigma=1.0),
        "lengths: none of the variance the prompt's": replace(ASSUMED, prompt_share=0.0),
        "lengths: median 6k for 9k": replace(ASSUMED, median_tokens=6000.0),
        "decoding: a sequence adds 0.03 ms for 0.06": replace(ASSUMED, sequence_s=0.03e-3),
        "decoding: a sequence adds 0.12 ms": replace(ASSUMED, sequence_s=0.12e-3),
        "training at 500 TFLOP/s for 250": replace(ASSUMED, train_flops=500e12),
        "training at 125 TFLOP/s": replace(ASSUMED, train_flops=125e12),
        "loading weights takes 20 s": replace(ASSUMED, update_s=20.0),
        "128 prompts a step for 256": replace(ASSUMED, prompts=128),
        "64 devices train": replace(ASSUMED, training_devices=64),
    }.items()
} | {
    "the bound: one version more, same mean lag": (
        ASSUMED,
        AsynchronousConfig(async_ratio=ASYNC_RATIO, extra_lag=1),
    ),
    "the bound: none": (
        ASSUMED,
        AsynchronousConfig(async_ratio=ASYNC_RATIO, at_deadline="train_anyway"),
    ),
    "late groups are dropped": (
        ASSUMED,
        AsynchronousConfig(async_ratio=ASYNC_RATIO, at_deadline="drop"),
    ),
}


def rows() -> Iterator[tuple[str, ...]]:
    """Assumption, devices that train, seconds of a synchronous and of an asynchronous step, and the
    speed-up."""
    synchronous: dict[Setting, float] = {}
    for name, (setting, policy) in CHANGED.items():
        # who trains is chosen for asynchronous steps alone
        key = replace(setting, training_devices=0)
        if key not in synchronous:
            synchronous[key] = step_s(key, SyncConfig())
        plain_s, overlapped_s = synchronous[key], step_s(setting, policy)
        yield (
            name,
            str(setting.num_training * SCALE),
            f"{plain_s:.0f}",
            f"{overlapped_s:.0f}",
            f"{plain_s / overlapped_s:.2f}",
        )


def main() -> None:
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    console = Console(width=120)
    table = Table(
        "changed", "train", "sync s", "asynchronous s", f"speed-up ({HEADLINE} published)"
    )
    for row in rows():
        console.print(" ".join(row), style="dim")
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
