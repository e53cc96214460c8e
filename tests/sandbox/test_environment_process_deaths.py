"""Whatever dies, its episodes end typed, its places are free again, and no process is left."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from environment_pools import PATIENT, SCRIPT, failure, hosts, until
from scripted_environments import Script

from artifacts.episodes import Ending
from tasks.environments.base import EnvironmentFailed
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools import pool as pool_module
from tasks.environments.pools.pool import EnvironmentPool
from tasks.environments.processes.environment_process import ProcessState

LOST = (Ending.CRASHED, "its fork server was lost")
NUM_KILLS = 50


OTHERS: set[psutil.Process] = set()  # what other tests of this process have running


@pytest.fixture(autouse=True)
def _note_others() -> Iterator[None]:
    OTHERS.update(psutil.Process().children(recursive=True))
    yield
    OTHERS.clear()


def tree() -> list[psutil.Process]:
    return [found for found in psutil.Process().children(recursive=True) if found not in OTHERS]


def host_processes() -> list[psutil.Process]:
    """Those that were forked: their parent is an interpreter, and not this one."""
    found = []
    for process in tree():
        with suppress(psutil.NoSuchProcess):
            parent = process.parent()
            if parent is not None and parent.pid != psutil.Process().pid and is_python(parent):
                found.append(process)
    return found


def is_python(process: psutil.Process) -> bool:
    return process.name().startswith("python")


def origin_process() -> psutil.Process:
    """The one that forks hosts."""
    return host_processes()[0].parent()


def num_zombies() -> int:
    statuses = []
    for process in tree():
        with suppress(psutil.NoSuchProcess):
            statuses.append(process.status())
    return statuses.count(psutil.STATUS_ZOMBIE)


async def test_a_lost_origin_fails_its_episodes_and_is_replaced() -> None:
    async with hosts() as pool:
        await pool.reset("thinking", SCRIPT, 1)
        await pool.reset("stepping", SCRIPT, 1)
        step = asyncio.create_task(pool.step("stepping", "loop"))
        await asyncio.sleep(0)
        origin_process().kill()
        assert await failure(step) == LOST
        assert await failure(pool.step("thinking", "")) == LOST
        assert await pool.reset("next", SCRIPT, 5) == "5:0"
        assert len(host_processes()) == 1


async def test_a_process_that_dies_while_the_model_thinks_fails_the_next_step() -> None:
    async with hosts() as pool:
        await pool.reset("one", SCRIPT, 1)
        host_processes()[0].kill()
        await until(lambda: pool.slots[0].state is ProcessState.DEAD)
        assert await failure(pool.step("one", "")) == (
            Ending.CRASHED,
            "its process was killed by SIGKILL",
        )
        assert await pool.reset("one", SCRIPT, 5) == "5:0"


async def test_a_free_process_that_dies_is_not_used_again() -> None:
    async with hosts(PATIENT.model_copy(update={"num_hosts": 1})) as pool:
        await pool.reset("one", SCRIPT, 1)
        await pool.end("one")
        host_processes()[0].kill()
        await until(lambda: pool.slots[0].state is ProcessState.DEAD)
        assert await pool.reset("two", SCRIPT, 5) == "5:0"


async def test_a_stopped_origin_is_ended_with_its_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "GRACE_S", 0.2)
    async with hosts(PATIENT.model_copy(update={"num_hosts": 2})) as pool:
        await pool.reset("thinking", SCRIPT, 1)
        await pool.reset("one", SCRIPT, 1)
        step = asyncio.create_task(pool.step("one", "loop"))
        await asyncio.sleep(0)
        origin_process().send_signal(signal.SIGSTOP)
        await pool.end("one")
        await failure(step)
        assert await pool.reset("two", SCRIPT, 5) == "5:0"
        assert await failure(pool.step("thinking", "")) == LOST


async def test_closing_fails_what_waits_and_leaves_no_process() -> None:
    pool = EnvironmentPool(PATIENT.model_copy(update={"num_hosts": 2}), (SCRIPT,))
    await pool.reset("one", SCRIPT, 1)
    await pool.reset("two", SCRIPT, 1)
    calls = [asyncio.create_task(pool.step("one", "loop"))]
    calls += [asyncio.create_task(pool.reset(word, SCRIPT, 1)) for word in ("three", "four")]
    await asyncio.sleep(0)
    before = tree()
    assert len(before) > 2
    pool.close()
    for call in calls:
        assert (await failure(call))[0] is Ending.CRASHED
    assert (await failure(pool.reset("five", SCRIPT, 1)))[1] == "this pool is closed"
    await until(lambda: not any(process.is_running() for process in before))
    assert not tree()


async def test_closing_while_the_origin_starts_leaves_no_process() -> None:
    pool = EnvironmentPool(PATIENT, (SCRIPT,))
    reset = asyncio.create_task(pool.reset("one", SCRIPT, 1))
    await until(tree)
    pool.close()
    assert (await failure(reset))[1] == "this pool is closed"
    assert not tree()


def test_closing_after_the_event_loop_leaves_no_process() -> None:
    pool = EnvironmentPool(PATIENT, (SCRIPT,))

    async def begin() -> None:
        await pool.reset("one", SCRIPT, 1)

    with asyncio.Runner() as runner:
        runner.run(begin())
    before = tree()
    assert before
    pool.close()
    assert not psutil.wait_procs(before, timeout=60.0)[1]


PARENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from scripted_environments import Script
from tasks.environments.processes import fork_servers
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool import EnvironmentPool

async def main():
    fork_servers.closed_to_nobody = lambda _: ""
    config = EnvironmentProcessConfig(reset_s=120, step_s=120, isolation=sys.argv[2])
    pool = EnvironmentPool(config, [Script()])
    for number in range(3):
        await pool.reset(str(number), Script(), number)
    busy = asyncio.create_task(pool.step("2", "loop"))
    await asyncio.sleep(0)
    print("ready", flush=True)
    await busy

asyncio.run(main())
"""


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
async def test_no_process_outlives_a_parent_that_is_killed(isolation: str) -> None:
    command = [sys.executable, "-c", PARENT, str(Path(__file__).parent), isolation]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        started = psutil.Process(parent.pid).children(recursive=True)
        assert len(started) >= 4
        parent.kill()
    await until(lambda: not any(is_alive(process) for process in started))


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("seed", range(3))
async def test_episodes_end_typed_under_fifty_random_kills(seed: int) -> None:
    draws = random.Random(seed)
    num_killed = 0
    endings: list[Ending] = []

    async def play(worker: int) -> None:
        for number in range(10_000):
            if num_killed >= NUM_KILLS:
                return
            endings.append(await episode(pool, f"{worker}/{number}", draws))

    async def kill() -> None:
        nonlocal num_killed
        while num_killed < NUM_KILLS:
            if running := host_processes():
                with suppress(psutil.NoSuchProcess):
                    draws.choice(running).kill()
                    num_killed += 1
            await asyncio.sleep(0.02 * draws.random())

    config = EnvironmentProcessConfig(
        num_hosts=6, reset_s=120.0, step_s=120.0, max_restarts=NUM_KILLS
    )
    async with hosts(config) as pool:
        await asyncio.wait_for(asyncio.gather(kill(), *map(play, range(10))), 500.0)
        report = pool.report
        assert len(endings) == report.resets
        assert endings.count(Ending.CRASHED) == report.crashed > 0
        assert endings.count(Ending.TERMINATED) > 0
        for number in range(6):
            assert await pool.reset(f"after {number}", SCRIPT, number) == f"{number}:0"
        assert {slot.state for slot in pool.slots} == {ProcessState.THINKING}
        await until(lambda: len(host_processes()) == 6)
        assert num_zombies() == 0
    assert not tree()


async def episode(pool: EnvironmentPool, episode_id: str, draws: random.Random) -> Ending:
    """Play one as a driver does, and say how it ended."""
    try:
        assert await pool.reset(episode_id, SCRIPT, 7) == "7:0"
        for turn in range(1, draws.randint(2, 6)):
            transition = await pool.step(episode_id, "sleep 0.005")
            assert transition.observation == f"7:{turn}"
    except EnvironmentFailed as failed:
        return failed.ending
    finally:
        await pool.end(episode_id)
    return Ending.TERMINATED


async def test_a_process_that_always_dies_is_not_healed_for_ever() -> None:
    broken = Script(at_build="exit 9")
    async with hosts(PATIENT.model_copy(update={"max_restarts": 3}), broken) as pool:
        for number in range(4):
            _, detail = await failure(pool.reset(str(number), broken, 1))
            assert detail == "its process ended with exit status 9"
        with pytest.raises(ValueError, match="failed 4 times in a row"):
            await pool.reset("last", broken, 1)
        assert pool.report.starts == 4
