"""Pools for the tests of hosts, and how to wait and to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psutil
import pytest
from scripted_environments import Script

from artifacts.episodes import Ending
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool import EnvironmentPool

SCRIPT = Script()
PATIENT = EnvironmentProcessConfig(
    num_hosts=4, reset_s=120.0, step_s=120.0
)  # however busy the machine is
ISOLATIONS = ["namespaces", "landlock"]


@asynccontextmanager
async def hosts(
    config: EnvironmentProcessConfig = PATIENT, *settings: EnvironmentSettings
) -> AsyncIterator[EnvironmentPool]:
    before = set(psutil.Process().children(recursive=True))  # servers of other tests
    pool = EnvironmentPool(config, settings or (SCRIPT,))
    await pool.warm()
    outer = set(psutil.Process().children(recursive=True)) - before
    try:
        yield pool
    finally:
        pool.close()
        await until(lambda: not any(process.is_running() for process in outer))


async def until(is_true: Callable[[], object], limit_s: float = 60.0) -> None:
    """Poll: what is waited for happens in other processes."""
    deadline_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline_s, "it never came true"
        await asyncio.sleep(0.01)


async def failure(call: Awaitable[object]) -> tuple[Ending, str]:
    with pytest.raises(EnvironmentFailed) as raised:
        await call
    detail = raised.value.detail
    assert detail
    assert detail.isascii()
    assert detail.isprintable()
    return raised.value.ending, detail
