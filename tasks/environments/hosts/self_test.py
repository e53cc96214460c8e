"""Whether this machine can host environments behind walls, and how long the start of one takes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tasks.environments.base import EnvironmentFailed
from tasks.environments.games.guess import GuessConfig
from tasks.environments.hosts.pool import HostPool
from tasks.environments.processes.config import HostConfig
from tasks.isolation.isolation import Isolation

GAME = GuessConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What the first process of a pool takes."""

    origin_s: float  # to start the fork server
    host_s: float  # to fork a process, build an environment and reset it


async def try_hosts(isolation: Isolation) -> tuple[str, Started]:
    """Why it cannot, empty if it can; and what the start took."""
    pool = HostPool(HostConfig(num_hosts=1, isolation=isolation.value), (GAME,))
    began_s = time.perf_counter()
    origin_s = 0.0
    try:
        await pool.warm()
        origin_s = time.perf_counter() - began_s
        await pool.reset("self-test", GAME, 1)
        reason = ""
    except (EnvironmentFailed, ValueError) as error:
        reason = str(error)
    finally:
        pool.close()
    return reason, Started(origin_s=origin_s, host_s=time.perf_counter() - began_s - origin_s)
