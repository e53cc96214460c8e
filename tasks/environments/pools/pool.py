"""A pool of processes in which environments step: an episode has one of its own from `reset` to
`end`.

    reset ─▶ (wait in order for a place) ─▶ a free process of equal settings, or a new one
    step, step, ... ─▶ end ─▶ free again; killed if it is in a call or failed
    killed ─▶ told by its origin ─▶ its place is free

Everything happens in one event loop, without a thread per process. The processes are forked from
one origin behind walls; a lost origin takes its processes with it and is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from artifacts.episodes import Ending
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.pools.pool_report import (
    PoolLoad,
    PoolReport,
    ProcessSlots,
    SlotRecord,
    Tally,
)
from tasks.environments.processes.environment_process import (
    EnvironmentProcess,
    ProcessState,
    end_text,
)
from tasks.environments.processes.fork_servers import ForkServerProcess, ForkServers
from tasks.isolation.isolation import Isolation


class AdmissionSlots:
    """For the coroutines of one event loop."""

    def __init__(self, num_places: int, wait_s: float) -> None:
        """wait_s: for how long a place is waited for."""
        self.num_waiting = 0
        self._num_places = num_places
        self._wait_s = wait_s
        self._free = asyncio.Semaphore(num_places)

    async def take(self) -> None:
        """Wait for one. Raises EnvironmentFailed after the deadline."""
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise EnvironmentFailed(
                Ending.UNANSWERED,
                f"no process was free for it within {self._wait_s:g} s,"
                f" all {self._num_places} have episodes",
            ) from error
        finally:
            self.num_waiting -= 1

    def release(self) -> None:
        """One is free for the next in order."""
        self._free.release()


SPARE = 256  # for everything else that its process has open


def raise_descriptor_limit(num_hosts: int) -> None:
    """Raise this process's soft limit as far as so many processes need. ValueError, with the cure,
    where its hard limit is below that."""
    wanted = num_hosts + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(
            f"a process that keeps num_hosts={num_hosts} environments must be allowed to open"
            f" {wanted} files, its limit is {hard}; lower episodes.hosts.num_hosts, or raise the"
            " hard limit (ulimit -Hn, LimitNOFILE of systemd)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Restarts:
    """Failures without a success between them, of processes of equal settings.

    Processes that ran side by side fail side by side: a failure counts only if its process was
    started after the last one that counted.
    """

    def __init__(self, settings: EnvironmentSettings, max_restarts: int) -> None:
        self.settings = settings
        self.wave = 0  # of processes that start now
        self._max_restarts = max_restarts
        self._num_failed = 0
        self._last = ""

    def succeeded(self) -> None:
        """A reset or a step was answered."""
        self._num_failed = 0

    def failed(self, wave: int, detail: str) -> None:
        """A process of this wave failed."""
        if wave == self.wave:
            self.wave += 1
            self._num_failed += 1
            self._last = detail

    def check(self) -> None:
        """ValueError once there were too many."""
        if self._num_failed > self._max_restarts:
            kind = type(self.settings)
            raise ValueError(
                "an environment must answer at least once in"
                f" {self._max_restarts} restarts of its process,"
                f" {kind.__module__}.{kind.__qualname__} failed {self._num_failed} times in a row,"
                f" the last time: {self._last}; mend the environment, or raise hosts.reset_s,"
                " hosts.memory_mb or hosts.max_restarts"
            )


LOG = logging.getLogger(__name__)
GRACE_S = 5.0  # for the origin to tell the end of a process that it was told to kill
Answer = TypeVar("Answer")


class EnvironmentPool:
    """`EnvironmentProcesses` in processes. For the coroutines of one event loop."""

    def __init__(
        self, config: EnvironmentProcessConfig, settings: Iterable[EnvironmentSettings] = ()
    ) -> None:
        """`settings`: of environments that are to come; what they import slowly is imported once,
        for all processes."""
        self._config = config
        self._places = AdmissionSlots(config.num_hosts, config.place_s)
        self._alive: dict[
            int, EnvironmentProcess
        ] = {}  # by number, from the order to fork until the end
        self._free: list[EnvironmentProcess] = []  # the one that is free for the longest time first
        self._episodes: dict[str, EnvironmentProcess] = {}
        self._permitted: set[EnvironmentProcess] = (
            set()
        )  # whose end, or end of episode, frees a place
        self._slots = ProcessSlots()
        self._restarts: list[Restarts] = []
        self._origins = ForkServers(config, settings, self._bury, self._bury_all)
        self._tally = Tally()
        self._num_started = 0
        self._is_closed = False

    async def warm(self) -> None:
        """Have the origin running, so that no episode waits for it. ValueError, with the cure,
        if the machine does not give the isolation, or not as many open files."""
        raise_descriptor_limit(self._config.num_hosts)
        await self._origins.warm()

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        """Begin an episode, or go on from a state; one of the same id is ended before."""
        await self.end(episode_id)
        self._tally.resets += 1
        host = await self._take(settings)
        self._episodes[episode_id] = host
        host.enter(ProcessState.RESETTING, episode_id)
        started_s = time.perf_counter()
        observation = await self._call(host, lambda: self._begin(host, seed, state))
        self._tally.reset_took(time.perf_counter() - started_s)
        return observation

    async def step(self, episode_id: str, text: str) -> Transition:
        """Take a turn."""
        host = self._episodes.get(episode_id)
        if host is None:
            raise EnvironmentFailed(Ending.CRASHED, "these hosts know no such episode")
        assert host.state in (ProcessState.THINKING, ProcessState.DEAD), "one call at a time"
        self._tally.steps += 1
        host.enter(ProcessState.STEPPING, episode_id)
        started_s = time.perf_counter()
        transition = await self._call(host, lambda: host.step(text))
        wall_s = time.perf_counter() - started_s
        self._tally.step_took(wall_s)
        self._slots.of(host).step_took(wall_s)
        return transition

    def snapshot(self, episode_id: str) -> bytes:
        """The episode's environment after its last step."""
        host = self._episodes.get(episode_id)
        return host.snapshot if host is not None else b""

    async def end(self, episode_id: str) -> None:
        """Give the episode's process back."""
        host = self._episodes.pop(episode_id, None)
        if host is None:
            return
        if host.state is ProcessState.THINKING:
            host.enter(ProcessState.FREE, "")
            self._free.append(host)
            self._release(host)
        else:
            self._kill(host)

    def close(self) -> None:
        """End every process; resets that wait, and all calls, fail."""
        self._is_closed = True
        self._origins.close()
        self._places.release()  # for a reset that waits, which hands it on

    def report(self) -> PoolReport:
        """What happened so far."""
        return self._tally.report()

    def records(self) -> tuple[SlotRecord, ...]:
        """Every place that ever had a process, by number."""
        return self._slots.records

    @property
    def load(self) -> PoolLoad:
        """How full it is."""
        return PoolLoad(
            num_places=self._config.num_hosts,
            num_episodes=len(self._permitted),
            num_waiting=self._places.num_waiting,
        )

    async def _begin(self, host: EnvironmentProcess, seed: int, state: bytes) -> str | None:
        if not host.is_forked:
            await host.start()
        if state and await host.restore(state):
            return None
        return await host.reset(seed)

    async def _call(
        self, host: EnvironmentProcess, call: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """A call of an episode: afterwards the model thinks, or the process is killed."""
        restarts = self._restarts_of(host.settings)
        try:
            answer = await call()
        except EnvironmentFailed as error:
            is_ended = host.is_killed
            self._drop(host)
            if not is_ended:
                restarts.failed(host.wave, error.detail)
                self._slots.of(host).failed(error.detail)
                self._tally.failures[error.ending] += 1
            raise
        except BaseException:
            self._drop(host)
            raise
        restarts.succeeded()
        if host.number in self._alive:  # it may have ended since it answered
            host.enter(ProcessState.THINKING, host.episode_id)
        return answer

    async def _take(self, settings: EnvironmentSettings) -> EnvironmentProcess:
        """A process of these settings, free or not yet forked, in the order of the calls."""
        await self._place()
        try:
            host = self._reused(settings) or await self._new(settings)
        except BaseException:
            self._places.release()
            raise
        self._permitted.add(host)
        return host

    async def _place(self) -> None:
        """Wait for a place; that none came free counts as a call that was not answered."""
        try:
            await self._places.take()
        except EnvironmentFailed as error:
            self._tally.failures[error.ending] += 1
            raise

    def _reused(self, settings: EnvironmentSettings) -> EnvironmentProcess | None:
        self._check(settings)
        for host in reversed(self._free):
            if host.settings == settings:
                self._free.remove(host)
                return host
        return None

    async def _new(self, settings: EnvironmentSettings) -> EnvironmentProcess:
        while len(self._alive) >= self._config.num_hosts:
            await asyncio.shield(self._unused().ended)
        origin = await self._origins.get(settings)
        self._check(settings)
        self._num_started += 1
        host = EnvironmentProcess(
            self._num_started,
            settings,
            origin,
            self._slots.empty(),
            self._config,
            wave=self._restarts_of(settings).wave,
            late=self._tally.late_answer,
        )
        self._alive[host.number] = host
        self._tally.starts += 1
        self._tally.restarts += self._slots.of(host).take(host)
        return host

    def _unused(self) -> EnvironmentProcess:
        """One that makes way: a free one, or what is about to end for a reset that was broken off.
        There is one, because whoever waits in `_take` has a place and no process."""
        if not self._free:
            return next(host for host in self._alive.values() if host not in self._permitted)
        unused = self._free.pop(0)
        self._kill(unused)
        return unused

    def _check(self, settings: EnvironmentSettings) -> None:
        if self._is_closed:
            raise EnvironmentFailed(Ending.CRASHED, "these hosts are closed")
        self._restarts_of(settings).check()

    def _restarts_of(self, settings: EnvironmentSettings) -> Restarts:
        for restarts in self._restarts:
            if restarts.settings == settings:
                return restarts
        self._restarts.append(Restarts(settings, self._config.max_restarts))
        return self._restarts[-1]

    def _drop(self, host: EnvironmentProcess) -> None:
        """Its episode is over, and nothing else can be asked of it."""
        if self._episodes.get(host.episode_id) is host:
            del self._episodes[host.episode_id]
        self._kill(host)

    def _kill(self, host: EnvironmentProcess) -> None:
        """Its place is free once its end is told."""
        if host.number not in self._alive or host.is_killed:
            return
        self._tally.kills += 1
        # one that is free made way
        self._slots.of(host).must_replace |= host in self._permitted
        host.enter(ProcessState.DEAD, host.episode_id)
        host.kill()
        if not host.is_forked:
            self._bury(host.number, None)
            return
        asyncio.get_running_loop().call_later(GRACE_S, self._end_silent_origin, host)

    def _end_silent_origin(self, host: EnvironmentProcess) -> None:
        """An origin that does not tell an end is stopped or hangs."""
        if host.number in self._alive:
            LOG.warning("fork server of environments silent: limit_s=%g", GRACE_S)
            self._origins.end(host.origin)

    def _bury(self, number: int, code: int | None) -> None:
        """A process has ended, by our order or by itself."""
        host = self._alive.pop(number, None)
        if host is None:
            return
        host.bury(code)
        host.enter(ProcessState.DEAD, host.episode_id)
        slot = self._slots.of(host)
        slot.leave(host)
        if host in self._free:
            self._free.remove(host)
            slot.failed(end_text(code))
        if not host.is_killed:
            slot.must_replace |= host in self._permitted
        self._release(host)

    def _bury_all(self, origin: ForkServerProcess) -> None:
        for host in [host for host in self._alive.values() if host.origin is origin]:
            self._bury(host.number, None)

    def _release(self, host: EnvironmentProcess) -> None:
        """Its place is free for the next in order."""
        if host in self._permitted:
            self._permitted.remove(host)
            self._places.release()


GAME = GuessConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStart:
    """What the first process of a pool takes."""

    origin_s: float  # to start the fork server
    host_s: float  # to fork a process, build an environment and reset it


async def try_environment_pool(isolation: Isolation) -> tuple[str, PoolStart]:
    """Why it cannot, empty if it can; and what the start took."""
    pool = EnvironmentPool(
        EnvironmentProcessConfig(num_hosts=1, isolation=isolation.value), (GAME,)
    )
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
    return reason, PoolStart(origin_s=origin_s, host_s=time.perf_counter() - began_s - origin_s)
