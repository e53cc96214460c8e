"""The origins of a pool: one for each interpreter, with a network and without, started when it is
wanted first and again when it was lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from artifacts.episodes import Ending
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings
from tasks.environments.processes.config import HostConfig
from tasks.environments.processes.fork_server_process import Ended, ForkServerProcess
from tasks.environments.processes.origin_walls import closed_to_nobody
from tasks.isolation.interrupt import Interrupted
from tasks.isolation.isolation import CURES, Isolation
from tasks.isolation.walled_process import NotStarted

LOG = logging.getLogger(__name__)


class Surroundings(NamedTuple):
    """What environments have in common that share an origin."""

    interpreter: str  # its path; empty: the run's own
    has_network: bool


class ForkServers:
    """For the coroutines of one event loop."""

    def __init__(
        self,
        config: HostConfig,
        settings: Iterable[EnvironmentSettings],
        ended: Ended,
        lost: Callable[[ForkServerProcess], None],
    ) -> None:
        """`ended` hears of hosts, `lost` of an origin that is gone with its hosts."""
        self._config = config
        self._imports = _slow_imports(settings)
        self._ended, self._lost = ended, lost
        self._running: dict[Surroundings, ForkServerProcess] = {}
        self._starting: dict[Surroundings, asyncio.Task[ForkServerProcess]] = {}
        self._unborn: set[ForkServerProcess] = set()

    async def warm(self) -> None:
        """Have those running that the settings want."""
        for wanted in self._imports:
            await self._get(wanted)

    async def get(self, settings: EnvironmentSettings) -> ForkServerProcess:
        """One for such environments that runs, which takes a second if it must be started.

        ValueError, with the cure, if the machine does not give the isolation or the interpreter.
        """
        return await self._get(surroundings(settings))

    async def _get(self, wanted: Surroundings) -> ForkServerProcess:
        if wanted in self._running:
            return self._running[wanted]
        if wanted not in self._starting:
            self._starting[wanted] = asyncio.create_task(self._start(wanted))
        return await asyncio.shield(self._starting[wanted])

    def end(self, origin: ForkServerProcess) -> None:
        """End one and its hosts; harmless if it has ended."""
        for place, running in list(self._running.items()):
            if running is origin:
                del self._running[place]
                origin.close()
                self._lost(origin)

    def close(self) -> None:
        """End all."""
        for origin in self._unborn:
            origin.interrupt()
        for origin in list(self._running.values()):
            self.end(origin)

    def _give_up(self, origin: ForkServerProcess) -> None:
        LOG.warning("fork server of environments lost: pid=%s", origin.pid)
        self.end(origin)

    async def _start(self, wanted: Surroundings) -> ForkServerProcess:
        origin = ForkServerProcess(
            self._config,
            self._imports.get(wanted, ()),
            has_network=wanted.has_network,
            interpreter=wanted.interpreter,
        )
        self._unborn.add(origin)
        try:
            await asyncio.to_thread(start_fork_server, origin, self._config)
        except Interrupted as error:
            raise EnvironmentFailed(Ending.CRASHED, "these hosts are closed") from error
        finally:
            self._unborn.discard(origin)
            del self._starting[wanted]
        origin.attach(self._ended, lambda: self._give_up(origin))
        self._running[wanted] = origin
        return origin


def surroundings(settings: EnvironmentSettings) -> Surroundings:
    """What an environment needs of its origin."""
    return Surroundings(settings.interpreter, settings.needs_network)


def start_fork_server(origin: ForkServerProcess, config: HostConfig) -> None:
    """Have it running. ValueError, with the cure, if the machine does not give the isolation or the
    interpreter; Interrupted."""
    try:
        if config.isolation == "landlock" and (closed := closed_to_nobody(origin.interpreter)):
            raise NotStarted(f"could not read Python, {closed} is closed to others")
        origin.start()
    except NotStarted as error:
        raise ValueError(
            f"environments need the isolation {config.isolation!r}, this machine does not give it:"
            f" the fork server of their processes {error}; {CURES[Isolation(config.isolation)]}"
        ) from error


def shared_imports(settings: EnvironmentSettings) -> tuple[str, ...]:
    """The modules that hosts of an environment share."""
    return (type(settings.recipe()).__module__, *settings.slow_imports)


def _slow_imports(settings: Iterable[EnvironmentSettings]) -> dict[Surroundings, tuple[str, ...]]:
    """The modules that hosts share, by what else they have in common."""
    found: dict[Surroundings, tuple[str, ...]] = {}
    for one in settings:
        place = surroundings(one)
        found[place] = tuple(dict.fromkeys((*found.get(place, ()), *shared_imports(one))))
    return found
