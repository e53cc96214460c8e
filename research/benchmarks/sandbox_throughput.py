"""How many programs a second does the sandbox execute, and what does one cost beside its own work?

    python -m research.benchmarks.sandbox_throughput --executions 1000 --workers 1 2

One line for each isolation that this machine gives and each number of workers. A program is a
function of one line with six test cases, so nearly all that is measured is overhead: fork, walls,
limits, calls, kill. The last line is what a fresh interpreter costs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from artifacts.datasets.program_tests import CodeGold, call_case
from artifacts.records import CaseVerdict
from tasks.isolation.isolation import Isolation, SandboxLimits
from tasks.rewards.programs.sandbox.case_runner import CaseRunner
from tasks.rewards.programs.sandbox.self_test import holds

PROGRAM = "def add_n(x):\n    return x + {number}"
LIMIT_S = 30.0


def gold(number: int) -> CodeGold:
    """Six cases of a function that adds a number."""
    return CodeGold(
        function="add_n", cases=tuple(call_case((value,), value + number) for value in range(6))
    )


def execute(runner: CaseRunner, num_executions: int) -> list[float]:
    """Seconds of each execution; every one must be right."""
    taken_s = []
    for number in range(num_executions):
        tests = gold(number)
        started_s = time.perf_counter()
        runs = runner.run(PROGRAM.format(number=number), tests, [LIMIT_S] * len(tests.cases))
        taken_s.append(time.perf_counter() - started_s)
        assert all(run.verdict is CaseVerdict.PASS for run in runs), (
            f"a right program must pass, got {runs}"
        )
    return taken_s


def measure(isolation: Isolation, num_workers: int, num_executions: int) -> str:
    """One line: executions per second of all workers, and per core that they can use; time of one
    execution."""
    runners = [CaseRunner(isolation, SandboxLimits()) for _ in range(num_workers)]
    for runner in runners:
        execute(runner, 5)
    with ThreadPoolExecutor(num_workers) as threads:
        started_s = time.perf_counter()
        taken_s = sorted(
            chain.from_iterable(
                threads.map(execute, runners, [num_executions // num_workers] * num_workers)
            )
        )
        rate = len(taken_s) / (time.perf_counter() - started_s)
    for runner in runners:
        runner.close()
    cores = min(num_workers, len(os.sched_getaffinity(0)))
    speed = f"executions={len(taken_s)} per_s={rate:.0f} per_s_and_core={rate / cores:.0f}"
    return f"isolation={isolation} workers={num_workers} {speed} {_quantiles(taken_s)}"


def measure_interpreter(num_starts: int) -> str:
    """The same line for starting a Python that does nothing, which is what an execution without a
    fork server costs at least."""
    taken_s = []
    for _ in range(num_starts):
        started_s = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        taken_s.append(time.perf_counter() - started_s)
    return f"isolation=none fresh interpreters={num_starts} {_quantiles(sorted(taken_s))}"


def _quantiles(taken_s: Sequence[float]) -> str:
    return " ".join(
        f"p{share}_ms={1e3 * taken_s[share * (len(taken_s) - 1) // 100]:.2f}"
        for share in (50, 95, 99)
    )


def main() -> None:
    """Measure every isolation that holds."""
    parser = argparse.ArgumentParser(
        prog="python -m research.benchmarks.sandbox_throughput",
        description="Executions per second.",
    )
    parser.add_argument("--executions", type=int, default=1000, help="programs for each line")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 2], help="sandboxes side by side"
    )
    arguments = parser.parse_args()
    if min(arguments.executions, *arguments.workers) < 1 or arguments.executions < max(
        arguments.workers
    ):
        parser.error(
            "every worker needs at least one program; raise --executions or lower --workers"
        )
    for isolation in Isolation:
        if reason := holds(isolation):
            print(f"isolation={isolation} unavailable: {reason}")
            continue
        for num_workers in arguments.workers:
            print(measure(isolation, num_workers, arguments.executions))
    print(measure_interpreter(30))


if __name__ == "__main__":
    main()
