"""Processes in which environments step: one for each episode, limited, contained, replaced, and
never left behind."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from environment_pools import ISOLATIONS, PATIENT, SCRIPT, failure, hosts, until
from scripted_environments import Connected, Heavy, Script, Unpicklable

from artifacts.episodes import Ending
from artifacts.records import pack, unpack
from tasks.environments.adapters.custom import CustomEnvironmentConfig
from tasks.environments.base import Transition
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool import EnvironmentPool
from tasks.environments.processes.environment_process import ProcessState
from tasks.environments.processes.fork_servers import ForkServerProcess


async def played(pool: EnvironmentPool, episode_id: str, *texts: str, seed: int = 3) -> Transition:
    await pool.reset(episode_id, SCRIPT, seed)
    for text in texts:
        transition = await pool.step(episode_id, text)
    return transition


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_an_episode_is_played_in_a_process_of_its_own(isolation: str) -> None:
    async with hosts(PATIENT.model_copy(update={"isolation": isolation})) as pool:
        assert await pool.reset("one", SCRIPT, 5) == "5:0"
        assert await pool.reset("two", SCRIPT, 6) == "6:0"
        told = await pool.step("one", "\ud800 é\n")
        assert told == Transition("5:1", 0.5, False, False, {"text": "? é\n"})
        assert (await pool.step("two", "last")) == Transition(
            "6:1", 0.5, True, False, {"text": "last"}
        )
        assert (await pool.step("one", "")).observation == "5:2"
        assert [slot.number for slot in pool.slots] == [1, 2]


async def test_pictures_are_drawn_behind_the_walls_and_come_out_of_them() -> None:
    walk = CustomEnvironmentConfig(path="examples.walk_environment:Walk")
    alone = walk.build()
    async with hosts(PATIENT) as pool:
        assert await pool.reset("one", walk, 5) == alone.reset(5)
        told = await pool.step("one", "up")
        assert told == alone.step("up")
        state = pool.snapshot("one")
        assert state, "the same goes on in another process, from what was drawn"
        assert await pool.reset("two", walk, 5, state) is None
        assert await pool.step("two", "left") == alone.step("left")
        assert unpack(pack(told)) == told


async def test_a_reset_that_is_broken_off_while_a_process_makes_way_leaves_its_place() -> None:
    others = SCRIPT.model_copy(update={"name": "others"})
    async with hosts(PATIENT.model_copy(update={"num_hosts": 1})) as pool:
        await pool.reset("one", SCRIPT, 1)
        await pool.end("one")
        broken_off = asyncio.create_task(pool.reset("two", others, 1))
        await asyncio.sleep(0)
        broken_off.cancel()
        assert await pool.reset("three", others, 5) == "5:0"


async def test_a_process_is_used_again_for_equal_settings_and_replaced_for_others() -> None:
    async with hosts(PATIENT.model_copy(update={"num_hosts": 1})) as pool:
        for episode_id in ("one", "two"):
            assert await pool.reset(episode_id, Script(), 5) == "5:0"
            await pool.step(episode_id, "")
            await pool.end(episode_id)
        assert pool.report.starts == 1
        assert await pool.reset("three", Script(at_reset="echo others"), 5) == "others"
        report = pool.report
        assert (report.starts, report.kills, report.restarts) == (2, 1, 0)
        assert [slot.number for slot in pool.slots] == [1]


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_an_episode_goes_on_from_its_state_in_another_process(isolation: str) -> None:
    async with hosts(PATIENT.model_copy(update={"isolation": isolation})) as pool:
        await played(pool, "one", "", "", seed=5)
        state = pool.snapshot("one")
        assert await pool.reset("two", SCRIPT, 1, state) is None
        assert pool.snapshot("two") == state
        assert (await pool.step("two", "")).observation == "5:3"
        assert (await pool.step("one", "")).observation == "5:3"
        await pool.step("two", "last")
        assert pool.snapshot("two") == b""
        assert await pool.reset("two", SCRIPT, 6) == "6:0"
        assert pool.snapshot("two") == b""
        assert pool.snapshot("nobody") == b""


@pytest.mark.parametrize("state", [b"no pickle", b"(lp0\n."], ids=["broken", "a list"])
async def test_a_state_that_does_not_come_back_is_no_failure_of_the_environment(
    state: bytes,
) -> None:
    async with hosts(PATIENT.model_copy(update={"max_restarts": 0})) as pool:
        assert await pool.reset("one", SCRIPT, 5, state) == "5:0"
        assert (await pool.step("one", "")).observation == "5:1"
        assert pool.report.kills == 0


@pytest.mark.parametrize(
    "settings", [Heavy(), Unpicklable(), Connected()], ids=lambda settings: type(settings).__name__
)
async def test_environments_without_a_small_state_of_their_own_have_none(settings: Script) -> None:
    async with hosts(PATIENT, SCRIPT) as pool:
        await pool.reset("one", settings, 5)
        assert (await pool.step("one", "")).observation == "5:1"
        assert pool.snapshot("one") == b""


async def test_further_resets_wait_in_order() -> None:
    async with hosts(PATIENT.model_copy(update={"num_hosts": 2})) as pool:
        begun: list[str] = []

        async def begin(episode_id: str) -> None:
            await pool.reset(episode_id, SCRIPT, 1)
            begun.append(episode_id)

        await begin("a")
        await begin("b")
        waiting = [asyncio.create_task(begin(episode_id)) for episode_id in "cdef"]
        await asyncio.sleep(0)
        await pool.end("a")
        await waiting[0]
        assert begun == ["a", "b", "c"]
        waiting[1].cancel()
        await pool.end("b")
        await waiting[2]
        await pool.end("c")
        await waiting[3]
        assert begun == ["a", "b", "c", "e", "f"]
        assert len(pool.slots) == 2


async def test_what_an_environment_does_wrong_is_a_crash_with_its_reason() -> None:
    reasons = {
        "raise some words\u00e9": r"LookupError: some words\\xe9 \(scripted_environments.py:\d+\)",
        "sys.exit": "SystemExit: 3",
        "exit 3": "its process ended with exit status 3",
        "allocate 600": "MemoryError",
        "long 40000": "at most 32768 characters, got 40000",
        "number": "an observation must be text, got int",
        "bytes": "TypeError: Object of type bytes",
        "infinite": "a reward must be a finite number from -1,000,000 to 1,000,000, got inf",
        "nan": "a reward must be a finite number from -1,000,000 to 1,000,000, got nan",
        "nothing": "AttributeError: 'NoneType'",
        "unasked": "an observation must be text, got NoneType",
        "claim": "an answer of 2147483647 bytes",
    }
    async with hosts() as pool:
        for text, reason in reasons.items():
            ending, detail = await failure(played(pool, "one", text))
            assert ending is Ending.CRASHED
            assert re.search(reason, detail), detail
            assert (await failure(pool.step("one", "")))[1] == "this pool knows no such episode"
        assert await pool.reset("one", SCRIPT, 5) == "5:0"
        report, num_cases = pool.report, len(reasons)
        assert (report.crashed, report.unanswered) == (num_cases, 0)
        assert (report.restarts, report.starts) == (num_cases, num_cases + 1)
        assert (report.resets, report.episodes) == (num_cases + 1, num_cases + 1)
        assert report.steps == num_cases


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_an_environment_is_contained(isolation: str) -> None:
    reasons = {
        "fork": "PermissionError",
        "subprocess": "PermissionError",
        "thread": "can't start new thread",
        "disk": "No space left|PermissionError",
        "socket 127.0.0.1:9": "PermissionError",
        f"touch {Path(__file__).parent}/touched": "Read-only file system|PermissionError",
        "read /etc/shadow": "No such file|PermissionError",
    }
    async with hosts(PATIENT.model_copy(update={"isolation": isolation})) as pool:
        for text, reason in reasons.items():
            ending, detail = await failure(played(pool, "one", text))
            assert ending is Ending.CRASHED
            assert re.search(reason, detail), detail


async def test_what_it_prints_is_dropped() -> None:
    async with hosts() as pool:
        assert (await played(pool, "one", "print", "print")).observation == "3:2"


async def test_a_call_past_its_limit_is_unanswered_and_its_process_killed() -> None:
    async with hosts(EnvironmentProcessConfig(num_hosts=1, reset_s=120.0, step_s=0.3)) as pool:
        assert await failure(played(pool, "one", "loop")) == (
            Ending.UNANSWERED,
            "no answer within 0.3 s",
        )
        assert await pool.reset("two", SCRIPT, 5) == "5:0"
        report = pool.report
        assert (report.unanswered, report.crashed, report.kills, report.restarts) == (1, 0, 1, 1)


@pytest.mark.parametrize("place", ["at_build", "at_reset"])
async def test_building_and_resetting_have_a_limit(place: str) -> None:
    settings = Script(**{place: "loop"})
    async with hosts(EnvironmentProcessConfig(num_hosts=1, reset_s=0.3), settings) as pool:
        ending, _ = await failure(pool.reset("one", settings, 1))
        assert ending is Ending.UNANSWERED


async def test_an_episode_that_ends_in_a_call_has_its_process_killed() -> None:
    async with hosts(PATIENT.model_copy(update={"num_hosts": 1})) as pool:
        await pool.reset("one", SCRIPT, 1)
        step = asyncio.create_task(pool.step("one", "loop"))
        await asyncio.sleep(0)
        assert [slot.state for slot in pool.slots] == [ProcessState.STEPPING]
        await pool.end("one")
        assert [slot.state for slot in pool.slots] == [ProcessState.DEAD]
        assert (await failure(step))[1] == "its episode was ended"
        assert await pool.reset("two", SCRIPT, 5) == "5:0"
        report = pool.report
        assert (report.kills, report.crashed, report.restarts) == (1, 0, 1)


async def test_a_call_that_is_cancelled_has_its_process_killed() -> None:
    async with hosts(PATIENT.model_copy(update={"num_hosts": 1})) as pool:
        await pool.reset("one", SCRIPT, 1)
        step = asyncio.create_task(pool.step("one", "loop"))
        await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert await pool.reset("two", SCRIPT, 5) == "5:0"
        assert pool.report.kills == 1


@pytest.mark.parametrize("num_turns_of_the_loop", [0, 3, 20])
async def test_a_reset_that_is_cancelled_or_ended_frees_its_place(
    num_turns_of_the_loop: int,
) -> None:
    settings = Script(at_reset="loop")
    async with hosts(PATIENT.model_copy(update={"num_hosts": 1})) as pool:
        for is_cancelled in (True, False):
            reset = asyncio.create_task(pool.reset("one", settings, 1))
            await until(lambda: "one" in {slot.episode_id for slot in pool.slots})
            for _ in range(num_turns_of_the_loop):
                await asyncio.sleep(0.001)
            if is_cancelled:
                reset.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reset
            else:
                await pool.end("one")
                assert (await failure(reset))[1].endswith("its episode was ended")
            assert await pool.reset("two", SCRIPT, 5) == "5:0"
            await pool.end("two")


async def test_an_answer_of_a_process_that_outlived_its_limit_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills: list[int] = []
    monkeypatch.setattr(ForkServerProcess, "kill", lambda origin, number: kills.append(number))
    async with hosts(EnvironmentProcessConfig(num_hosts=2, reset_s=120.0, step_s=0.05)) as pool:
        ending, _ = await failure(played(pool, "one", "sleep 0.5"))
        assert (ending, kills) == (Ending.UNANSWERED, [1])
        await until(lambda: pool.report.late_answers)
        assert pool.report.late_answers == 1


async def test_ending_what_is_unknown_or_over_is_harmless() -> None:
    async with hosts() as pool:
        await pool.end("never")
        await failure(played(pool, "one", "raise it"))
        await pool.end("one")
        assert (await failure(pool.step("one", "")))[0] is Ending.CRASHED


async def test_an_environment_that_never_works_is_an_error_with_a_cure() -> None:
    settings = Script(at_build="raise no game here")
    config = PATIENT.model_copy(update={"max_restarts": 2})
    async with hosts(config, settings) as pool:
        calls = (failure(pool.reset(f"{number}", settings, 1)) for number in range(4))
        await asyncio.gather(*calls)  # side by side: one failure
        for number in range(2):
            await failure(pool.reset(f"again {number}", settings, 1))
        with pytest.raises(ValueError, match=r"2 restarts .* failed 3 times .*no game.*; mend"):
            await pool.reset("last", settings, 1)
        assert await pool.reset("other", SCRIPT, 5) == "5:0"


async def test_one_success_forgives_failures() -> None:
    async with hosts(PATIENT.model_copy(update={"max_restarts": 1})) as pool:
        for number in range(4):
            await failure(played(pool, f"{number}", "raise it"))
        assert await pool.reset("last", SCRIPT, 5) == "5:0"


async def test_records_say_what_each_process_is_at() -> None:
    async with hosts() as pool:
        before_s = time.time()
        reset = asyncio.create_task(pool.reset("one", SCRIPT, 1))
        await asyncio.sleep(0)
        (record,) = pool.slots
        assert (record.state, record.episode_id) == (ProcessState.RESETTING, "one")
        await reset
        (record,) = pool.slots
        assert (record.state, record.kind) == (
            ProcessState.THINKING,
            "scripted_environments.Script",
        )
        now_s = time.time()
        status = record.status(now_s)
        assert status.age_s is not None
        assert 0 <= status.for_s <= status.age_s <= now_s - before_s
        await pool.end("one")
        (record,) = pool.slots
        assert (record.state, record.episode_id) == (ProcessState.FREE, "")


async def test_a_record_counts_on_when_its_process_is_replaced() -> None:
    async with hosts(PATIENT.model_copy(update={"num_hosts": 2})) as pool:
        await played(pool, "other", "sleep 0.05")
        for number in range(2):
            await played(pool, f"{number}", "sleep 0.05", "sleep 0.05")
            await failure(pool.step(f"{number}", "exit 3"))
        await until(lambda: pool.slots[1].state is ProcessState.DEAD)
        other, record = pool.slots
        first, status = (slot.status(time.time()) for slot in (other, record))
        assert (first.num_steps, first.num_restarts, first.last_failure) == (1, 0, "")
        assert (status.num_steps, status.num_restarts, record.num_failures) == (4, 1, 2)
        assert (status.age_s, status.episode) == (None, "")
        assert status.last_failure == "its process ended with exit status 3"
        assert 0.05 <= status.mean_s < 100
        assert 0.045 <= status.p95_s < 100


async def test_a_reset_that_gets_no_place_in_time_fails() -> None:
    async with hosts(PATIENT.model_copy(update={"num_hosts": 1, "place_s": 0.2})) as pool:
        await pool.reset("one", SCRIPT, 1)
        waiting = asyncio.create_task(failure(pool.reset("two", SCRIPT, 1)))
        await until(lambda: pool.load.num_waiting)
        assert (pool.load.num_places, pool.load.num_episodes) == (1, 1)
        assert await waiting == (
            Ending.UNANSWERED,
            "no process was free for it within 0.2 s, all 1 have episodes",
        )
        assert (pool.load.num_waiting, pool.report.unanswered) == (0, 1)
        await pool.end("one")
        assert await pool.reset("two", SCRIPT, 5) == "5:0"


async def test_memory_is_bounded_beyond_what_is_shared() -> None:
    async with hosts(PATIENT.model_copy(update={"memory_mb": 100})) as pool:
        assert (await failure(played(pool, "one", "allocate 110")))[1].startswith("MemoryError")
        transition = await played(pool, "two", "allocate 50", "")
        assert transition.observation == "3:2"
