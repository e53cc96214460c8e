"""The origins of a pool: one for environments without a network, one for those that need it, each
started when it is wanted first and again when it was lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from artifacts.episodes import Ending
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings
from tasks.environments.hosts.config import HostConfig
from tasks.environments.hosts.origin_process import Ended, OriginProcess
from tasks.environments.hosts.origin_walls import closed_to_nobody
from tasks.sandbox.interrupt import Interrupted
from tasks.sandbox.isolation import CURES, Isolation
from tasks.sandbox.walled_process import NotStarted

LOG = logging.getLogger(__name__)


class Origins:
    """For the coroutines of one event loop."""

    def __init__(
        self,
        config: HostConfig,
        settings: Iterable[EnvironmentSettings],
        ended: Ended,
        lost: Callable[[OriginProcess], None],
    ) -> None:
        """`ended` hears of hosts, `lost` of an origin that is gone with its hosts."""
        self._config = config
        self._imports = _slow_imports(settings)
        self._ended, self._lost = ended, lost
        self._running: dict[bool, OriginProcess] = {}
        self._starting: dict[bool, asyncio.Task[OriginProcess]] = {}
        self._unborn: set[OriginProcess] = set()

    async def warm(self) -> None:
        """Have those running that the settings want."""
        for has_network in self._imports:
            await self.get(has_network=has_network)

    async def get(self, *, has_network: bool) -> OriginProcess:
        """One that runs, which takes a second if it must be started.

        ValueError, with the cure, if the machine does not give the isolation.
        """
        if has_network in self._running:
            return self._running[has_network]
        if has_network not in self._starting:
            self._starting[has_network] = asyncio.create_task(self._start(has_network))
        return await asyncio.shield(self._starting[has_network])

    def end(self, origin: OriginProcess) -> None:
        """End one and its hosts; harmless if it has ended."""
        for has_network, running in list(self._running.items()):
            if running is origin:
                del self._running[has_network]
                origin.close()
                self._lost(origin)

    def close(self) -> None:
        """End all."""
        for origin in self._unborn:
            origin.interrupt()
        for origin in list(self._running.values()):
            self.end(origin)

    def _give_up(self, origin: OriginProcess) -> None:
        LOG.warning("fork server of environments lost: pid=%s", origin.pid)
        self.end(origin)

    async def _start(self, has_network: bool) -> OriginProcess:
        imports = self._imports.get(has_network, ())
        origin = OriginProcess(self._config, imports, has_network=has_network)
        self._unborn.add(origin)
        try:
            if self._config.isolation == "landlock" and (closed := closed_to_nobody()):
                raise NotStarted(f"could not read Python, {closed} is closed to others")
            await asyncio.to_thread(origin.start)
        except NotStarted as error:
            raise ValueError(
                f"environments need the isolation {self._config.isolation!r}, this machine does"
                f" not give it: the fork server of their processes {error};"
                f" {CURES[Isolation(self._config.isolation)]}"
            ) from error
        except Interrupted as error:
            raise EnvironmentFailed(Ending.CRASHED, "these hosts are closed") from error
        finally:
            self._unborn.discard(origin)
            del self._starting[has_network]
        origin.attach(self._ended, lambda: self._give_up(origin))
        self._running[has_network] = origin
        return origin


def _slow_imports(settings: Iterable[EnvironmentSettings]) -> dict[bool, tuple[str, ...]]:
    """The modules that hosts share, by whether they have a network."""
    found: dict[bool, tuple[str, ...]] = {}
    for one in settings:
        modules = (type(one).__module__, *one.slow_imports)
        known = found.get(one.needs_network, ())
        found[one.needs_network] = tuple(dict.fromkeys((*known, *modules)))
    return found
