"""A signal stops a flow where it awaits something, or where it is if it never does, and whatever
comes of it is the stop and no failure."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from prefect.utilities import engine
from prefect.utilities.engine import can_ack_control_intent, capture_sigterm

from artifacts.layout import STEPS
from artifacts.store import Store
from flows import stopping
from flows.stopping import STOPS, Stop, stoppable

Body = Callable[[], Awaitable[object]]
ALL = (*STOPS, stopping.NUDGE)


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of a process at a terminal; afterwards they are as before, which they must be by then."""
    monkeypatch.setattr(stopping, "AWAITS_WITHIN_S", 0.1)
    first = {number: signal.getsignal(number) for number in ALL}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    before = {number: signal.getsignal(number) for number in ALL}
    prefects = engine._prefect_sigterm_handler
    yield
    assert {number: signal.getsignal(number) for number in ALL} == before
    assert engine._prefect_sigterm_handler is prefects
    assert "signals" not in {thread.name for thread in threading.enumerate()}
    for number, handler in first.items():
        signal.signal(number, handler)


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def ran(body: Body, told: list[str] | None = None) -> None:
    """The body of a flow, with a signal of Prefect's own making around it."""

    async def flow() -> None:
        with capture_sigterm(), stoppable((told if told is not None else []).append):
            await body()

    asyncio.run(flow())


async def awaits() -> None:
    await asyncio.sleep(60)


async def sleeps() -> None:
    time.sleep(60)


async def waits_for_a_thread() -> None:
    threading.Event().wait(60)


async def computes() -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        sum(range(1000))


async def makes_a_failure_of_it() -> None:
    """As a serializer does."""
    try:
        time.sleep(60)
    except BaseException as error:
        raise ValueError("it cannot be serialized") from error


async def fails_beside_it() -> None:
    """As a worker does that has got the signal, too."""
    raise RuntimeError("a worker is lost")


async def has_a_task_that_computes() -> None:
    await asyncio.gather(computes(), return_exceptions=True)
    await awaits()


BODIES: tuple[Body, ...] = (
    awaits,
    sleeps,
    waits_for_a_thread,
    computes,
    makes_a_failure_of_it,
    fails_beside_it,
    has_a_task_that_computes,
)


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("body", BODIES)
def test_a_flow_is_cancelled_whatever_it_does(body: Body, number: signal.Signals) -> None:
    told: list[str] = []

    async def stopped() -> None:
        send(number)
        while not told:  # the line is there before anything happens
            time.sleep(0.001)
        await body()

    with pytest.raises(asyncio.CancelledError, match=f"stopped by {number.name}"):
        ran(stopped, told)
    assert told == ["stopping, no step is committed; Ctrl-C again ends at once"]


def test_without_a_signal_a_failure_is_a_failure() -> None:
    with pytest.raises(RuntimeError, match="a worker is lost"):
        ran(fails_beside_it)


def test_what_is_committed_is_told(tmp_path: Path) -> None:
    store, told = Store.open(str(tmp_path)), list[str]()
    for step in (1, 2):
        store.write(f"{STEPS}/{step:05d}.json", b"{}")

    async def flow() -> None:
        with stoppable(told.append) as stop, stop.watched(store):
            send()
            await awaits()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(flow())
    assert told == ["stopping, step 2 is committed; Ctrl-C again ends at once"]


def test_a_second_ctrl_c_ends_the_process_and_another_sigterm_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(stopping, "end_process", ended.append)

    async def heard() -> None:
        stop = Stop(lambda line: None)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            stop.receive(number)
        assert ended == []
        stop.receive(signal.SIGINT)
        stop.end()

    asyncio.run(heard())
    assert ended == [130]


def test_prefect_takes_the_handler_for_its_own_in_the_flow_and_in_flows_within_it() -> None:
    """Or it would not tell a cancelled run from one that crashed, or raise where it likes."""

    async def within() -> None:
        assert can_ack_control_intent()
        with capture_sigterm():
            assert can_ack_control_intent()
            send()
            await awaits()

    with pytest.raises(asyncio.CancelledError):
        ran(within)


def test_below_nohup_a_closed_terminal_stops_nothing() -> None:
    async def hung_up() -> None:
        send(signal.SIGHUP)
        await asyncio.sleep(0)

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ran(hung_up)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
