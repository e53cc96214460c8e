"""Whether a run of many tiny steps leaks memory: of its processes, and of the GPUs.

    python -m research.benchmarks.leak --device cuda --out FOLDER

A whole run of `tiny-sync` in steps as short as the flow allows, watched from outside. A figure is
the difference between the medians of two windows: the last steps, and as many once the run has
settled. In the first steps caches fill, code is compiled and allocators take what they keep.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from artifacts import layout
from research.benchmarks.soak import MEGABYTE, SMALL, Readings, resident
from research.gpu.figures import Figure
from research.gpu.runs import demo, device_settings
from tasks.cluster.cards import cards, management
from tasks.cluster.parent import kill_descendants

READ_EVERY_S = 0.5
# steps of the run, steps in which it settles, steps of a window
SIZES = {"cuda": (200, 20, 20), "cpu": (24, 8, 6)}
HOST_MB, GPU_MB = 64.0, 64.0  # bounds on growth: of a process, and of all GPUs together
GPUS = "all GPUs"


def watched(command: list[str], steps: Path) -> tuple[int, Readings]:
    """Run the command; its exit status, and the megabytes read while it committed into `steps`."""
    readings = Readings()
    process = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
    try:
        while process.poll() is None:
            held = resident({"flow": process.pid})
            with management() as nvml:
                used = [card.total_bytes - card.free_bytes for card in cards(nvml)]
            if used:
                held[GPUS] = sum(used) / MEGABYTE
            readings.add(len([*steps.glob("[0-9]*.json")]), held)
            time.sleep(READ_EVERY_S)
    finally:
        kill_descendants(process.pid)
        process.kill()
        process.wait()
    return process.returncode, readings


def growth(points: list[tuple[int, float]], settled: int, window: int, last: int) -> float | None:
    """Megabytes at the end less those once settled; None for what was not there at both times.
    points: committed steps and megabytes; last: steps of the run."""
    by_window: dict[bool, list[float]] = defaultdict(list)
    for step, value in points:
        if settled <= step < settled + window or last - window <= step < last:
            by_window[step >= last - window].append(value)
    if len(by_window) < 2:
        return None
    return statistics.median(by_window[True]) - statistics.median(by_window[False])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, choices=[*SIZES])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    num_steps, settled, window = SIZES[options.device]
    given = (*SMALL, f"num_steps={num_steps}", *device_settings(options.device, gpu_share=0.2))
    command = demo(options.out, "leak", *given, preset="tiny-sync")
    code, readings = watched(command, options.out / "leak" / layout.STEPS)
    for name, points in sorted(readings.of.items()):
        grown = growth(points, settled, window, num_steps)
        if grown is not None:
            bound = GPU_MB if name == GPUS else HOST_MB
            words = f"{name}: growth from step {settled} to {num_steps}"
            Figure(name=words, value=grown, unit="MB", at_most=bound).print()
    return code


if __name__ == "__main__":
    sys.exit(main())
