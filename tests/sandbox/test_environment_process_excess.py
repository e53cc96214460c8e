"""Environments that fork, fill their disk, open sockets or print without end: each costs its own
episode, and nobody else anything."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from environment_pools import ISOLATIONS, PATIENT, SCRIPT, failure, hosts
from scripted_environments import Connected

from artifacts.episodes import Ending
from tasks.environments.processes.process_main import NUM_FILES

NUM_TURNS = 20
TWO = PATIENT.model_copy(update={"num_hosts": 2})
EXCESSES = ("fork", "subprocess", "thread", "disk", "socket 127.0.0.1:9", "print")


def processes() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("excess", EXCESSES)
async def test_what_it_does_without_end_costs_its_own_episode_alone(
    isolation: str, excess: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with hosts(TWO.model_copy(update={"isolation": isolation})) as pool:
        await pool.reset("good", SCRIPT, 5)
        await pool.reset("bad", SCRIPT, 6)
        before = processes()
        endless = asyncio.create_task(pool.step("bad", f"forever {excess}"))
        for turn in range(1, NUM_TURNS + 1):
            assert (await pool.step("good", "sleep 0.01")).observation == f"5:{turn}"
        assert not endless.done()
        assert processes() == before
        await pool.end("bad")
        assert (await failure(endless))[1] == "its episode was ended"
        assert await pool.reset("next", SCRIPT, 7) == "7:0"
        assert (await pool.step("good", "")).observation == f"5:{NUM_TURNS + 1}"
    assert capfd.readouterr() == ("", "")


async def test_answers_without_end_are_those_of_a_crash() -> None:
    async with hosts(TWO) as pool:
        await pool.reset("good", SCRIPT, 5)
        await pool.reset("bad", SCRIPT, 6)
        assert (await failure(pool.step("bad", "forever unasked")))[0] is Ending.CRASHED
        assert (await pool.step("good", "")).observation == "5:1"
        assert await pool.reset("next", SCRIPT, 7) == "7:0"


async def test_a_disk_that_is_full_is_one_process_own() -> None:
    async with hosts(TWO.model_copy(update={"disk_mb": 4})) as pool:
        written = []
        for episode_id in ("one", "two"):  # beside each other
            await pool.reset(episode_id, SCRIPT, 5)
            written.append(int((await pool.step(episode_id, "fill")).observation))
        assert written[0] == written[1]
        assert 0 < written[0] <= 4


async def test_a_process_with_the_network_holds_so_many_sockets_at_most() -> None:
    async with hosts(TWO, Connected()) as pool:
        await pool.reset("one", Connected(), 5)
        held = int((await pool.step("one", "hoard")).observation)
        assert 0 < held <= NUM_FILES
        await pool.reset("two", Connected(), 5)
        assert int((await pool.step("two", "hoard")).observation) == held
