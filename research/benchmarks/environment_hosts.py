"""What do the processes cost in which environments step?

    python -m research.benchmarks.environment_hosts --hosts 200 --steps 20000

The environment is trivial, so that all is overhead: memory of a process beyond the first, by the
kernel's proportional set size; processor time of a step, both sides of the stream together; and
the time from the order to fork to the first observation, one after the other and all at once.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from research.benchmarks.direct_environments import DirectEnvironments
from research.benchmarks.trivial_environment import Trivial
from tasks.environments.base import EnvironmentProcesses
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool import EnvironmentPool
from tasks.environments.pools.pool_report import PoolReport

SETTINGS = Trivial()
TEXT = "move 3 to 5"
NUM_STARTS = 100


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--isolation", choices=("namespaces", "landlock"), default="namespaces")
    given = parser.parse_args(arguments)
    config = EnvironmentProcessConfig(
        num_hosts=given.hosts, isolation=given.isolation, step_s=300, reset_s=300
    )
    asyncio.run(measure(config, given.steps))


async def measure(config: EnvironmentProcessConfig, num_steps: int) -> None:
    """All figures of this isolation."""
    started_s = time.perf_counter()
    pool = EnvironmentPool(config, (SETTINGS,))
    await pool.warm()
    print(f"{config.isolation}: fork server ready after {time.perf_counter() - started_s:.2f} s")
    await _starts_in_turn(config)
    await _start(pool, 0)
    first_bytes = _shared_bytes()
    await asyncio.gather(*(_start(pool, number) for number in range(1, config.num_hosts)))
    print(f"{config.num_hosts} at once: {_times(pool.report)}")
    for number in range(config.num_hosts):
        await pool.step(str(number), TEXT)
    each_mb = (_shared_bytes() - first_bytes) / max(1, config.num_hosts - 1) / 1e6
    print(f"{config.num_hosts} processes: {first_bytes / 1e6:.1f} MB with one, ", end="")
    print(f"{each_mb:.2f} MB each beyond the first")
    for num_episodes in dict.fromkeys((1, 16, config.num_hosts)):
        await _steps(pool, num_episodes, num_steps)
    pool.close()
    direct = DirectEnvironments(config)
    await _start(direct, 0)
    print("without processes: ", end="")
    await _steps(direct, 1, num_steps)


async def _starts_in_turn(config: EnvironmentProcessConfig) -> None:
    pool = EnvironmentPool(config.model_copy(update={"num_hosts": NUM_STARTS}), (SETTINGS,))
    await pool.warm()
    for number in range(NUM_STARTS):
        await _start(pool, number)
    print(f"{NUM_STARTS} in turn: {_times(pool.report)}")
    pool.close()


async def _start(pool: EnvironmentProcesses, number: int) -> None:
    await pool.reset(str(number), SETTINGS, number)


async def _steps(pool: EnvironmentProcesses, num_episodes: int, num_steps: int) -> None:
    async def play(number: int) -> None:
        for _ in range(num_steps // num_episodes):
            await pool.step(str(number), TEXT)

    cpu_s, wall_s = _processor_s(), time.perf_counter()
    await asyncio.gather(*map(play, range(num_episodes)))
    num_done = num_steps // num_episodes * num_episodes
    cpu_s, wall_s = _processor_s() - cpu_s, time.perf_counter() - wall_s
    print(
        f"{num_episodes} episodes: {num_done / wall_s:.0f} steps a second,"
        f" {num_done / cpu_s:.0f} a second of processor time"
    )


def _times(report: PoolReport) -> str:
    times = report.reset_times
    quantiles = [1000 * times.quantile_s(share) for share in (0.5, 0.99)]
    return f"to the first observation {quantiles[0]:.0f} ms p50, {quantiles[1]:.0f} ms p99"


def _shared_bytes() -> int:
    """Memory of the hosts, their fork server and its walls, shared pages divided."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
    return total


def _processor_s() -> float:
    """Of this process and all inside."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return float(sum(spent.user + spent.system for spent in times))


if __name__ == "__main__":
    main()
