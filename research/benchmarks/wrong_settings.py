"""How long it takes until a user reads what is wrong with twenty settings.

    python -m research.benchmarks.wrong_settings --runs 10 --busy 12

    command line ──▶ `rollflow demo`, a process of its own ──▶ its list of errors, timed

The settings lie in ten parts of the configuration; the command must name all of them and start
nothing. Wall time is what a user waits, processor time what the command needs on any machine: trust
that one where others work beside it. --busy puts endless loops beside it, each a process. Leaves
out what a right configuration costs, whose rows are read and whose rewards are called.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

WRONG = (
    "num_stepz=3",
    "seed=often",
    "model.kind=pth",
    "task.num_promts=9",
    "task.kind=chain_sums",
    "rewards.*.kind=math",
    "rewards.*.path=reward.py:reward",
    "batch.prompts_per_step=0",
    "batch.responses=8",
    "scheduling.kind=tail-batching",
    "sampling.temprature=1",
    "sampling.max_response_tokens=-1",
    "engine.max_model_length=512",
    "engine.sleep_mode=perhaps",
    "learner.optimizer.lr=0.1",
    "learner.loss.kind=gpso",
    "learner.lora.rank=8",
    "cluster.device_kind=tpu",
    "evaluation.num_prompts=1",
    "keep.trakers=[]",
)
REFUSED = 2  # exit status of a command whose settings are wrong
NEVER_COMPILES = "PYTHONDONTWRITEBYTECODE"  # without kept modules each start compiles 0.4 s
SPIN = [sys.executable, "-c", "while True: pass"]


class Refusal(NamedTuple):
    """One run of the command."""

    wall_s: float  # seconds until the process has ended
    processor_s: float  # of the process, user and system
    lines: tuple[str, ...]  # what it wrote to standard error


def refusal(assignments: Sequence[str]) -> Refusal:
    """Run the command with these settings. Raises RuntimeError unless it refuses them."""
    words = [sys.executable, "-m", "flows.commands.rollflow", "demo", "--preset", "tiny"]
    words += [word for each in assignments for word in ("--set", each)]
    with tempfile.TemporaryDirectory() as root:
        before, began_s = _processor_s(), time.perf_counter()
        done = subprocess.run(
            [*words, "--root", root], env=compiles(), capture_output=True, text=True, check=False
        )
        wall_s = time.perf_counter() - began_s
    if done.returncode != REFUSED:
        raise RuntimeError(
            f"the command must refuse the settings with status {REFUSED}, got {done.returncode}:"
            f" {done.stderr[-500:]}"
        )
    return Refusal(wall_s, _processor_s() - before, tuple(done.stderr.splitlines()))


def compiles() -> dict[str, str]:
    """This environment, but that Python keeps compiled modules, as `make` has it, too."""
    return {name: value for name, value in os.environ.items() if name != NEVER_COMPILES}


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def unnamed(assignments: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The assignments whose field or wrong value no line names."""
    text = "\n".join(lines)
    return [
        each
        for each in assignments
        if each.partition("=")[0].rpartition(".")[2] not in text and each.split("=")[1] not in text
    ]


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Endless loops beside the block, ended after it."""
    started = [subprocess.Popen(SPIN) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    """Time the command several times, and print medians, extremes and the load."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0, help="endless loops beside the command")
    options = parser.parse_args()
    with busy_processes(options.busy):
        refusal(WRONG)  # the first one compiles what has changed
        runs = [refusal(WRONG) for _ in range(options.runs)]
        load = os.getloadavg()[0]
    if missing := unnamed(WRONG, runs[0].lines):
        raise SystemExit(f"the list must name every wrong setting, {missing} are missing")
    for what, seconds in (
        ("wall", [run.wall_s for run in runs]),
        ("processor", [run.processor_s for run in runs]),
    ):
        middle = statistics.median(seconds)
        print(f"{what:<10}{middle:6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")
    print(
        f"{len(WRONG)} wrong settings, {len(runs)} runs, {options.busy} endless loops beside them;"
        f" load of the last minute {load:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
