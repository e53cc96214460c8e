"""The origins of a pool: one for each interpreter, with a network and without, started when it is
wanted first and again when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from artifacts.episodes import Ending
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.processes.fork_server import ENDED, FORK, KILL, ORDER
from tasks.environments.processes.walls import ENVIRONMENT, START_S, closed_to_nobody, command
from tasks.isolation.child_process import ChildProcess, NotStarted, start_walled
from tasks.isolation.interpreter import Interpreter, at, own
from tasks.isolation.interrupt import Interrupt, Interrupted
from tasks.isolation.isolation import CURES, Isolation

LOG = logging.getLogger(__name__)
MAX_FORKING = 64  # hosts at a time: of a few hundred orders its stream would be full
AGAIN_S = 0.01  # between two tries to give an order that finds the stream full
Ended = Callable[[int, int], None]  # a host's number and its exit code


class ForkServerProcess:
    """One origin, from its start to its end; a lost one is replaced by another."""

    def __init__(
        self,
        config: EnvironmentProcessConfig,
        imports: Sequence[str] = (),
        *,
        has_network: bool = False,
        interpreter: str = "",
    ) -> None:
        """`interpreter`: absolute path of the Python that it runs with; empty: this one's."""
        self._config = config
        self._python = interpreter
        self._imports = tuple(imports)
        self._has_network = has_network
        self.forking = asyncio.Semaphore(MAX_FORKING)  # from the order until the walls stand
        self._interrupt = Interrupt()
        self._process: ChildProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = bytearray()
        self._ended: Ended = lambda number, code: None
        self._lost: Callable[[], None] = lambda: None

    @property
    def pid(self) -> int | None:
        """Process id of the outermost process, None when there is none."""
        return self._process.popen.pid if self._process else None

    @property
    def interpreter(self) -> Interpreter:
        """What it runs with; the first call may take a second. ValueError, with the cure, for one
        that cannot be used."""
        return at(self._python) if self._python else own()

    def start(self) -> None:
        """Have it running, which takes about a second. NotStarted if it cannot, and what
        `interpreter` raises.

        Where a shared import fails, hangs or starts threads, each host imports for itself.
        """
        try:
            self._process = self._started(self._imports)
        except NotStarted as error:
            if not self._imports:
                raise
            LOG.warning("hosts import for themselves: modules=%s %s", self._imports, error)
            self._process = self._started(())

    def attach(self, ended: Ended, lost: Callable[[], None]) -> None:
        """Hear of ends in the running event loop; `lost` is to close it when it is gone."""
        assert self._process is not None
        self._ended, self._lost = ended, lost
        self._process.stream.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._process.stream.fileno(), self._hear)

    def fork(self, number: int, stream: socket.socket) -> None:
        """Ask for a host at the other end of this stream. OSError if the origin is gone."""
        self._send(FORK, number, stream)

    def kill(self, number: int) -> None:
        """Have a host killed with all it started; its end is told. Harmless when it has ended."""
        try:
            self._send(KILL, number)
        except BlockingIOError:
            if self._loop is not None:
                self._loop.call_later(AGAIN_S, self.kill, number)
        except OSError:  # an origin that is gone has ended it
            return

    def forget_ends(self) -> None:
        """For a caller that does not attach: an origin whose words nobody reads says no more."""
        assert self._process is not None
        self._process.stream.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._process.stream.recv(1 << 16):
                pass

    def interrupt(self) -> None:
        """From another thread than that of `start`, which raises Interrupted."""
        self._interrupt.set()

    def close(self) -> None:
        """End it and every host; harmless without a process."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(process.stream.fileno())
        process.kill()

    def _started(self, imports: Sequence[str]) -> ChildProcess:
        isolation, interpreter = Isolation(self._config.isolation), self.interpreter
        return start_walled(
            lambda socket_fd, users: command(
                self._config,
                socket_fd,
                users,
                imports=imports,
                has_network=self._has_network,
                interpreter=interpreter,
            ),
            isolation,
            env=ENVIRONMENT if isolation is Isolation.LANDLOCK else {},
            limit_s=START_S,
            interrupt=self._interrupt,
        )

    def _send(self, order: bytes, number: int, stream: socket.socket | None = None) -> None:
        if self._process is None:
            raise ConnectionResetError("the fork server is gone")
        descriptors = [] if stream is None else [stream.fileno()]
        socket.send_fds(self._process.stream, [ORDER.pack(order, number)], descriptors)

    def _hear(self) -> None:
        assert self._process is not None
        try:
            told = self._process.stream.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            told = b""
        if not told:
            self._lost()
            return
        self._received += told
        while len(self._received) >= ENDED.size:
            number, code = ENDED.unpack_from(self._received)
            del self._received[: ENDED.size]
            self._ended(number, code)


class ForkServerKey(NamedTuple):
    """What environments have in common that share an origin."""

    interpreter: str  # its path; empty: the run's own
    has_network: bool


class ForkServers:
    """For the coroutines of one event loop."""

    def __init__(
        self,
        config: EnvironmentProcessConfig,
        settings: Iterable[EnvironmentSettings],
        ended: Ended,
        lost: Callable[[ForkServerProcess], None],
    ) -> None:
        """`ended` hears of hosts, `lost` of an origin that is gone with its hosts."""
        self._config = config
        self._imports = _slow_imports(settings)
        self._ended, self._lost = ended, lost
        self._running: dict[ForkServerKey, ForkServerProcess] = {}
        self._starting: dict[ForkServerKey, asyncio.Task[ForkServerProcess]] = {}
        self._unborn: set[ForkServerProcess] = set()

    async def warm(self) -> None:
        """Have those running that the settings want."""
        for wanted in self._imports:
            await self._get(wanted)

    async def get(self, settings: EnvironmentSettings) -> ForkServerProcess:
        """One for such environments that runs, which takes a second if it must be started.

        ValueError, with the cure, if the machine does not give the isolation or the interpreter.
        """
        return await self._get(fork_server_key(settings))

    async def _get(self, wanted: ForkServerKey) -> ForkServerProcess:
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

    async def _start(self, wanted: ForkServerKey) -> ForkServerProcess:
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


def fork_server_key(settings: EnvironmentSettings) -> ForkServerKey:
    """What an environment needs of its origin."""
    return ForkServerKey(settings.interpreter, settings.needs_network)


def start_fork_server(origin: ForkServerProcess, config: EnvironmentProcessConfig) -> None:
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


def _slow_imports(settings: Iterable[EnvironmentSettings]) -> dict[ForkServerKey, tuple[str, ...]]:
    """The modules that hosts share, by what else they have in common."""
    found: dict[ForkServerKey, tuple[str, ...]] = {}
    for one in settings:
        place = fork_server_key(one)
        found[place] = tuple(dict.fromkeys((*found.get(place, ()), *shared_imports(one))))
    return found
