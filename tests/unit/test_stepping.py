"""The stepping thread on a core that needs no device: order, wake-ups, deadlines, death."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from record_factories import make_generated

from artifacts.records import Generated
from tasks.engines.base import EngineLost
from tasks.engines.vllm.stepping import SteppingThread


class CountdownCore:
    """Responses that each need some steps; finishes them in the step in which their count is used
    up."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.steps = 0
        self.threads = {threading.current_thread().name}
        self.closed = False
        self.before_step: Callable[[], None] = lambda: None

    @property
    def busy(self) -> bool:
        return bool(self.left)

    def add(self, counts: dict[int, int]) -> int:
        self.left |= counts
        return self.steps

    def step(self) -> list[Generated]:
        self.before_step()
        self.threads.add(threading.current_thread().name)
        self.steps += 1
        self.left = {index: count - 1 for index, count in self.left.items()}
        done = [index for index, count in self.left.items() if count == 0]
        for index in done:
            del self.left[index]
        return [make_generated(index=index) for index in done]

    def close(self) -> None:
        self.closed = True


Thread = SteppingThread[CountdownCore]


@pytest.fixture
def thread() -> Iterator[Thread]:
    stepping = SteppingThread("engine-0", CountdownCore)
    stepping.start(deadline_s=5)
    yield stepping
    stepping.close(deadline_s=5)


async def test_everything_of_a_core_runs_in_one_thread(thread: Thread) -> None:
    await thread.call("add", lambda core: core.add({0: 3}), 5)
    assert len(await thread.collect(5)) == 1
    assert await thread.call("threads", lambda core: core.threads, 5) == {"engine-0-stepping"}


async def test_a_batch_enters_before_the_next_step(thread: Thread) -> None:
    await thread.call("add", lambda core: core.add({0: 5, 1: 5, 2: 5}), 5)
    assert [generated.index for generated in await thread.collect(5)] == [0, 1, 2]


async def test_collect_wakes_for_finished_responses_and_not_for_steps(thread: Thread) -> None:
    await thread.call("add", lambda core: core.add({0: 200, 1: 300}), 5)
    batches = [await thread.collect(5)]
    while sum(len(batch) for batch in batches) < 2:
        batches.append(await thread.collect(5))
    assert all(batches)


async def test_a_cancelled_or_timed_out_collect_loses_nothing(thread: Thread) -> None:
    assert await thread.collect(0.0) == []
    waiting = asyncio.create_task(thread.collect(5))
    await asyncio.sleep(0)
    waiting.cancel()
    thread.deliver([make_generated(index=4)])
    assert [generated.index for generated in await thread.collect(5)] == [4]


async def test_a_clearing_forgets_what_nobody_collected_and_ends_waits(thread: Thread) -> None:
    abandoned = asyncio.create_task(thread.collect(5))
    await asyncio.sleep(0)
    thread.clear()
    thread.deliver([make_generated(index=1)])
    assert await abandoned == []
    assert [generated.index for generated in await thread.collect(5)] == [1]
    thread.deliver([make_generated(index=2)])
    thread.clear()
    assert await thread.collect(0.0) == []


async def test_a_user_error_leaves_the_thread_alive(thread: Thread) -> None:
    def refuse(core: CountdownCore) -> None:
        raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        await thread.call("refuse", refuse, 5)
    assert await thread.call("steps", lambda core: core.steps, 5) == 0


async def test_a_crash_in_a_step_reaches_waiting_and_later_calls(thread: Thread) -> None:
    def rig(core: CountdownCore) -> None:
        core.before_step = lambda: [][1]
        core.add({0: 1})

    waiting = asyncio.create_task(thread.collect(5))
    await asyncio.sleep(0)
    await thread.call("rig", rig, 5)
    for lost in (waiting, thread.collect(5), thread.call("steps", lambda core: core.steps, 5)):
        with pytest.raises(
            EngineLost, match=r"(?s)engine-0's stepping thread died of IndexError.*Traceback"
        ):
            await lost


async def test_a_crash_in_a_call_reaches_its_caller(thread: Thread) -> None:
    def crash(core: CountdownCore) -> None:
        raise RuntimeError("half loaded")

    with pytest.raises(EngineLost, match="RuntimeError: half loaded"):
        await thread.call("load_weights", crash, 5)
    with pytest.raises(EngineLost, match="half loaded"):
        await thread.call("steps", lambda core: core.steps, 5)


async def test_a_missed_deadline_says_what_and_is_final(thread: Thread) -> None:
    in_step, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        in_step.set()
        assert_set(go_on)

    def rig(core: CountdownCore) -> None:
        core.before_step = hang
        core.add({0: 1})

    await thread.call("rig", rig, 5)
    assert_set(in_step)  # a call before the step would be answered in time
    with pytest.raises(EngineLost, match=r"engine-0 did not answer stats within 0.05 s; .*step"):
        await thread.call("stats", lambda core: core.steps, 0.05)
    go_on.set()
    with pytest.raises(EngineLost, match="did not answer stats"):
        await thread.call("stats", lambda core: core.steps, 5)


def assert_set(event: threading.Event) -> None:
    assert event.wait(5)


def test_a_user_error_of_the_build_is_the_callers() -> None:
    def build() -> CountdownCore:
        raise ValueError("no such model")

    stepping = SteppingThread("engine-0", build)
    with pytest.raises(ValueError, match="no such model"):
        stepping.start(deadline_s=5)
    stepping.close(deadline_s=5)


async def test_close_frees_the_core_and_refuses_calls() -> None:
    core = CountdownCore()
    stepping = SteppingThread("engine-0", lambda: core)
    stepping.start(deadline_s=5)
    stepping.close(deadline_s=5)
    stepping.close(deadline_s=5)
    assert core.closed
    with pytest.raises(EngineLost, match="engine-0 was closed"):
        await stepping.collect(5)


async def test_a_call_may_wait_until_the_core_has_nothing_to_do(thread: Thread) -> None:
    """Others are answered meanwhile."""
    go_on = threading.Event()

    def hold(core: CountdownCore) -> None:
        core.before_step = lambda: (core.steps < 2 or go_on.wait(5)) and None
        core.add({0: 6})

    await thread.call("add", hold, 5)
    idle = asyncio.create_task(
        thread.call("idle", lambda core: (core.steps, core.busy), 5, when_idle=True)
    )
    go_on.set()
    assert await idle == (6, False)
    assert await thread.call("steps", lambda core: core.steps, 5, when_idle=True) == 6


async def test_a_clearing_and_a_death_end_the_wait_for_an_idle_core(thread: Thread) -> None:
    def clear(core: CountdownCore) -> None:
        thread.clear()

    def die(core: CountdownCore) -> None:
        raise RuntimeError("the device is gone")

    await thread.call("add", lambda core: core.add({0: 10**9}), 5)
    for end, error in ((clear, "has loaded other weights"), (die, "the device is gone")):
        idle = asyncio.create_task(thread.call("idle", lambda core: None, 5, when_idle=True))
        await asyncio.sleep(0)
        with contextlib.suppress(EngineLost):
            await thread.call("end", end, 5)
        with pytest.raises(EngineLost, match=error):
            await idle
