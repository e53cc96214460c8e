"""A pool of environment processes: an episode has a process of its own from `reset` to `end`.

    reset ─▶ (wait in order for a place) ─▶ a free process of equal settings, or a new one
    step, step, ... ─▶ end ─▶ free again; killed if it is in a call or failed
    killed ─▶ its fork server reports its end ─▶ its place is free

A lost fork server takes its processes with it and is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from artifacts.episodes import Ending
from tasks.environments.base import Crashed, EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool_report import PoolLoad, PoolReport, ProcessSlot
from tasks.environments.processes.environment_process import (
    EnvironmentProcess,
    ProcessState,
    end_text,
)
from tasks.environments.processes.fork_servers import (
    ForkServerProcess,
    ForkServers,
    fork_server_key,
)
from tasks.isolation.frames import GRACE_S

LOG = logging.getLogger(__name__)
SPARE = 256  # descriptors for everything else that the pool's own process has open
Answer = TypeVar("Answer")


class Restarts:
    """Counts the failures in a row of processes with equal settings.

    Processes that ran side by side fail side by side: a failure counts only if its process was
    started after the last failure that counted.
    """

    def __init__(self, settings: EnvironmentSettings, max_restarts: int) -> None:
        self.settings = settings
        self.wave = 0  # of processes that start now
        self._max_restarts = max_restarts
        self._num_failed = 0
        self._last = ""

    def succeeded(self) -> None:
        """Forget earlier failures: a reset or a step was answered."""
        self._num_failed = 0

    def failed(self, wave: int, detail: str) -> None:
        """Count the failure of a process of this wave."""
        if wave == self.wave:
            self.wave += 1
            self._num_failed += 1
            self._last = detail

    def check(self) -> None:
        """Raise ValueError after too many failures in a row."""
        if self._num_failed > self._max_restarts:
            raise ValueError(
                "an environment must answer at least once in"
                f" {self._max_restarts} restarts of its process,"
                f" {self.settings.class_name} failed {self._num_failed} times in a row,"
                f" the last time: {self._last}; mend the environment, or raise"
                " deadlines.environment_s, episodes.hosts.memory_mb or episodes.hosts.max_restarts"
            )


class EnvironmentPool:
    """`EnvironmentProcesses` in forked processes. For the coroutines of one event loop."""

    def __init__(
        self, config: EnvironmentProcessConfig, settings: Iterable[EnvironmentSettings] = ()
    ) -> None:
        """settings: of expected environments; their slow imports are made once for all."""
        self._config = config
        self._places = asyncio.Semaphore(config.num_hosts)
        self._num_waiting = 0  # resets that wait for a place
        self._alive: dict[int, EnvironmentProcess] = {}  # by number, from the order to fork on
        self._free: list[EnvironmentProcess] = []  # the longest free one first
        self._episodes: dict[str, EnvironmentProcess] = {}
        self._placed: set[EnvironmentProcess] = set()  # those that hold a place
        self.slots: list[ProcessSlot] = []  # that ever had a process, by number
        self._restarts: list[Restarts] = []
        self._fork_servers = ForkServers(config, settings, self._ended, self._all_ended)
        self.report = PoolReport()
        self._num_started = 0
        self._is_closed = False

    async def warm(self) -> None:
        """Start the fork servers. Raises also ValueError for too few open files."""
        raise_descriptor_limit(self._config.num_hosts)
        await self._fork_servers.warm()

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        """End an episode of the same id; else as `EnvironmentProcesses.reset`."""
        await self.end(episode_id)
        self.report.resets += 1
        process = await self._take(settings)
        self._episodes[episode_id] = process
        process.enter(ProcessState.RESETTING, episode_id)

        async def begin() -> str | None:
            if not process.is_forked:
                await process.start()
            if state and await process.restore(state):
                return None
            return await process.reset(seed)

        started_s = time.perf_counter()
        observation = await self._call(process, begin)
        self.report.episodes += 1
        self.report.reset_times.add(time.perf_counter() - started_s)
        return observation

    async def step(self, episode_id: str, text: str) -> Transition:
        process = self._episodes.get(episode_id)
        if process is None:
            raise Crashed("this pool knows no such episode")
        assert process.state in (ProcessState.THINKING, ProcessState.DEAD), "one call at a time"
        self.report.steps += 1
        process.enter(ProcessState.STEPPING, episode_id)
        started_s = time.perf_counter()
        transition = await self._call(process, lambda: process.step(text))
        wall_s = time.perf_counter() - started_s
        self.report.step_times.add(wall_s)
        slot = self._slot(process)
        slot.steps_s += wall_s
        slot.step_times.add(wall_s)
        return transition

    def snapshot(self, episode_id: str) -> bytes:
        process = self._episodes.get(episode_id)
        return process.snapshot if process is not None else b""

    async def end(self, episode_id: str) -> None:
        process = self._episodes.pop(episode_id, None)
        if process is None:
            return
        if process.state is ProcessState.THINKING:
            process.enter(ProcessState.FREE, "")
            self._free.append(process)
            self._release(process)
        else:
            self._kill(process)

    def close(self) -> None:
        """End every process; waiting resets and running calls fail."""
        self._is_closed = True
        self._fork_servers.close()
        self._places.release()  # for a reset that waits, which hands it on

    @property
    def load(self) -> PoolLoad:
        return PoolLoad(
            num_places=self._config.num_hosts,
            num_episodes=len(self._placed),
            num_waiting=self._num_waiting,
        )

    async def _call(
        self, process: EnvironmentProcess, call: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Make a call; after it it is the model's turn, or the process is killed."""
        restarts = self._restarts_of(process.settings)
        try:
            answer = await call()
        except BaseException as error:
            is_ended = process.is_killed
            if self._episodes.get(process.episode_id) is process:
                del self._episodes[process.episode_id]
            self._kill(process)
            if isinstance(error, EnvironmentFailed) and not is_ended:
                restarts.failed(process.wave, error.detail)
                self._slot(process).failed(error.detail)
                self.report.failed(error.ending)
            raise
        restarts.succeeded()
        if process.number in self._alive:  # it may have ended since it answered
            process.enter(ProcessState.THINKING, process.episode_id)
        return answer

    # --- a process for an episode --------------------------------------------------------------

    async def _take(self, settings: EnvironmentSettings) -> EnvironmentProcess:
        """Returns a process of these settings, free or not yet forked, in the order of calls."""
        await self._wait_for_place()
        try:
            self._check(settings)
            equal = [process for process in self._free if process.settings == settings]
            if equal:
                self._free.remove(equal[-1])
                process = equal[-1]
            else:
                process = await self._new(settings)
        except BaseException:
            self._places.release()
            raise
        self._placed.add(process)
        return process

    async def _wait_for_place(self) -> None:
        """Raises EnvironmentFailed after the deadline, as if a call had no answer."""
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._config.place_s):
                await self._places.acquire()
        except TimeoutError as error:
            self.report.failed(Ending.UNANSWERED)
            raise EnvironmentFailed(
                Ending.UNANSWERED,
                f"no process was free for it within {self._config.place_s:g} s,"
                f" all {self._config.num_hosts} have episodes",
            ) from error
        finally:
            self._num_waiting -= 1

    async def _new(self, settings: EnvironmentSettings) -> EnvironmentProcess:
        while len(self._alive) >= self._config.num_hosts:
            if self._free:
                unused = self._free.pop(0)
                self._kill(unused)
            else:  # one about to end for a reset that was broken off: who has a place has no other
                alive = self._alive.values()
                unused = next(process for process in alive if process not in self._placed)
            await asyncio.shield(unused.ended)
        fork_server = await self._fork_servers.get(fork_server_key(settings))
        self._check(settings)
        self._num_started += 1
        slot = self._empty_slot()
        process = EnvironmentProcess(
            self._num_started, settings, fork_server, self._config, self.report.late_answer
        )
        process.slot, process.wave = slot.number, self._restarts_of(settings).wave
        self._alive[process.number] = process
        self.report.starts += 1
        self.report.restarts += slot.take(process)
        return process

    def _empty_slot(self) -> ProcessSlot:
        """A slot whose process is gone or about to be, first of those that must be refilled."""
        slots = self.slots
        empty = [slot for slot in slots if slot.process is None or slot.process.is_killed]
        if not empty:
            slots.append(ProcessSlot(number=len(slots) + 1))
            return slots[-1]
        return next((slot for slot in empty if slot.must_replace), empty[0])

    def _slot(self, process: EnvironmentProcess) -> ProcessSlot:
        return self.slots[process.slot - 1]

    def _check(self, settings: EnvironmentSettings) -> None:
        if self._is_closed:
            raise Crashed("this pool is closed")
        self._restarts_of(settings).check()

    def _restarts_of(self, settings: EnvironmentSettings) -> Restarts:
        for restarts in self._restarts:
            if restarts.settings == settings:
                return restarts
        self._restarts.append(Restarts(settings, self._config.max_restarts))
        return self._restarts[-1]

    # --- the end of a process ------------------------------------------------------------------

    def _kill(self, process: EnvironmentProcess) -> None:
        """Kill a process; its place is free once its end is reported."""
        if process.number not in self._alive or process.is_killed:
            return
        self.report.kills += 1
        # one that is free made way
        self._slot(process).must_replace |= process in self._placed
        process.enter(ProcessState.DEAD, process.episode_id)
        process.kill()
        if process.is_forked:
            asyncio.get_running_loop().call_later(GRACE_S, self._end_silent_server, process)
        else:
            self._ended(process.number, None)

    def _end_silent_server(self, process: EnvironmentProcess) -> None:
        if process.number in self._alive:
            LOG.warning("fork server of environments silent: limit_s=%g", GRACE_S)
            self._fork_servers.end(process.fork_server)

    def _ended(self, number: int, code: int | None) -> None:
        process = self._alive.pop(number, None)
        if process is None:
            return
        process.bury(code)
        process.enter(ProcessState.DEAD, process.episode_id)
        slot = self._slot(process)
        if slot.process is process:  # and no other one has taken the slot already
            slot.process, slot.empty_since_s = None, time.time()
        if process in self._free:
            self._free.remove(process)
            slot.failed(end_text(code))
        if not process.is_killed:
            slot.must_replace |= process in self._placed
        self._release(process)

    def _all_ended(self, fork_server: ForkServerProcess) -> None:
        for process in tuple(self._alive.values()):
            if process.fork_server is fork_server:
                self._ended(process.number, None)

    def _release(self, process: EnvironmentProcess) -> None:
        if process in self._placed:
            self._placed.remove(process)
            self._places.release()


def raise_descriptor_limit(num_hosts: int) -> None:
    """Raise this process's soft limit of open files, so that every environment process can have a
    stream. Raises ValueError, with the cure, if the hard limit is too low."""
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
