"""A pool's end of the stream to a host: answers in time, late ones, and broken ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tasks.environments.base import Crashed, EnvironmentFailed
from tasks.environments.processes.environment_process import LinkLost, ProcessLink
from tasks.isolation.frames import framed

LONG_S = 60.0


@asynccontextmanager
async def linked(late: list[str]) -> AsyncIterator[tuple[ProcessLink, socket.socket]]:
    """A link and the process's end of it."""
    ours, theirs = socket.socketpair()
    link = ProcessLink(100, lambda: late.append("late"))
    await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
    with theirs:
        yield link, theirs
        link.disconnect()
        await asyncio.sleep(0)


async def settled(link: ProcessLink) -> None:
    """Whatever was sent is read: an answer beyond its end is heard by the loop."""
    for _ in range(10):
        await asyncio.sleep(0.001)


async def test_an_answer_is_handed_over_however_it_is_cut() -> None:
    async with linked([]) as (link, theirs):
        link.expect()
        for byte in framed(b"one"):
            theirs.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await link.answer(LONG_S) == b"one"
        link.expect()
        link.send(framed(b"order"))
        theirs.send(framed(b"two"))
        assert await link.answer(LONG_S) == b"two"
        assert theirs.recv(100) == framed(b"order")


async def test_an_answer_after_the_limit_is_dropped_and_counted() -> None:
    late: list[str] = []
    async with linked(late) as (link, theirs):
        link.expect()
        with pytest.raises(EnvironmentFailed, match=r"no answer within 0\.01 s"):
            await link.answer(0.01)
        theirs.send(framed(b"one") + framed(b"two"))
        await settled(link)
        assert late == ["late", "late"]
        link.expect()
        with pytest.raises(EnvironmentFailed):
            await link.answer(LONG_S)


async def test_an_answer_after_its_call_was_cancelled_or_given_up_is_late() -> None:
    late: list[str] = []
    async with linked(late) as (link, theirs):
        link.expect()
        call = asyncio.create_task(link.answer(LONG_S))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        theirs.send(framed(b"one"))
        await settled(link)
        assert late == ["late"]
    async with linked(late) as (link, theirs):
        link.expect()
        link.close()
        with pytest.raises(LinkLost):
            await link.answer(LONG_S)
        theirs.send(framed(b"one"))
        await settled(link)
        assert late == ["late", "late"]


async def test_an_answer_that_nobody_asked_for_breaks_the_next_call_and_is_the_last() -> None:
    late: list[str] = []
    async with linked(late) as (link, theirs):
        theirs.send(framed(b"one") * 3)
        await settled(link)
        with pytest.raises(BrokenPipeError):
            theirs.send(framed(b"more"))
        assert not late
        link.expect()
        with pytest.raises(Crashed, match="nobody asked for"):
            await link.answer(LONG_S)


async def test_a_length_beyond_the_bound_is_refused_before_it_is_read() -> None:
    async with linked([]) as (link, theirs):
        link.expect()
        theirs.send(framed(bytes(101))[:4])
        with pytest.raises(Crashed, match="an answer of 101 bytes, at most 100 may be"):
            await link.answer(LONG_S)


async def test_the_end_of_the_process_ends_the_call_and_every_later_one() -> None:
    async with linked([]) as (link, theirs):
        link.expect()
        theirs.close()
        for _ in range(2):
            with pytest.raises(LinkLost):
                await link.answer(LONG_S)
            link.expect()
            link.send(b"to nobody")
