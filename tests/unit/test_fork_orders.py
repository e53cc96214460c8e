"""However many processes are wanted or unwanted at a time, their fork server hears of each."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from typing import cast

import pytest

from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.processes.environment_process import EnvironmentProcess
from tasks.environments.processes.fork_server import FORK, KILL, ORDER
from tasks.environments.processes.fork_servers import ForkServerKey, ForkServerProcess
from tasks.isolation.child_process import ChildProcess
from tasks.isolation.frames import CONFINED, framed

NUM_HOSTS = 400  # of which a socket does not hold the orders


@pytest.fixture
def served() -> Iterator[tuple[ForkServerProcess, socket.socket]]:
    """A fork server, and where its orders come out."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    origin = ForkServerProcess(EnvironmentProcessConfig(), ForkServerKey("", has_network=False))
    origin._process = cast("ChildProcess", _Streamed(ours))
    with ours, theirs:
        yield origin, theirs


class _Streamed:
    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream


async def test_every_process_is_forked_that_is_wanted_at_once(
    served: tuple[ForkServerProcess, socket.socket],
) -> None:
    origin, orders = served
    origin.attach(lambda number, code: None, lambda: None)
    hosts = [
        EnvironmentProcess(number, GuessConfig(), origin, EnvironmentProcessConfig(), lambda: None)
        for number in range(NUM_HOSTS)
    ]
    starts = asyncio.gather(*(host.start() for host in hosts))
    forked: list[int] = []
    while len(forked) < NUM_HOSTS and not starts.done():
        await asyncio.sleep(0.001)
        while order := _next(orders):
            kind, number, (stream,) = order
            assert kind == FORK
            forked.append(number)
            os.write(stream, framed(CONFINED))
            os.close(stream)
    await starts
    assert sorted(forked) == list(range(NUM_HOSTS))
    for host in hosts:
        host.bury(None)


async def test_every_process_is_killed_that_is_unwanted_at_once(
    served: tuple[ForkServerProcess, socket.socket],
) -> None:
    origin, orders = served
    origin.attach(lambda number, code: None, lambda: None)
    for number in range(NUM_HOSTS):
        origin.kill(number)
    killed: set[int] = set()
    async with asyncio.timeout(10):
        while len(killed) < NUM_HOSTS:
            await asyncio.sleep(0.001)
            while order := _next(orders):
                assert order[0] == KILL
                killed.add(order[1])


def _next(orders: socket.socket) -> tuple[bytes, int, list[int]] | None:
    """The next order and the stream with it, if there is one."""
    try:
        order, streams, _, _ = socket.recv_fds(orders, ORDER.size, 1)
    except BlockingIOError:
        return None
    return *ORDER.unpack(order), streams
