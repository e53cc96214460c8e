"""The fork servers of a pool: one for each interpreter, with a network and without, started at its
first use and again when it was lost.

    start() -> attach(ended, lost) -> fork(number, stream), kill(number), ... -> close()
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from tasks.environments.base import Crashed, EnvironmentSettings
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.processes.fork_server import FORK, KILL, ORDER
from tasks.environments.processes.walls import ENVIRONMENT, START_S, closed_to_nobody, command
from tasks.isolation.child_process import ChildProcess, NotStarted, start_walled
from tasks.isolation.frames import ENDED
from tasks.isolation.interpreter import at, own
from tasks.isolation.interrupt import Interrupt, Interrupted
from tasks.isolation.isolation import CURES, Isolation

LOG = logging.getLogger(__name__)
MAX_FORKING = 64  # processes at a time: a few hundred orders would fill the stream
AGAIN_S = 0.01  # between two tries to give an order that finds the stream full
Ended = Callable[[int, int], None]  # a process's number and its exit code


class ForkServerKey(NamedTuple):
    """The traits that all environments of one fork server share."""

    interpreter: str  # path of the Python that it runs with; empty: the run's own
    has_network: bool


def fork_server_key(settings: EnvironmentSettings) -> ForkServerKey:
    """Returns the traits of the fork server that an environment needs."""
    return ForkServerKey(settings.interpreter, settings.needs_network)


def shared_imports(settings: EnvironmentSettings) -> tuple[str, ...]:
    """Returns the modules that a fork server imports once for all processes of an environment."""
    return (type(settings.recipe()).__module__, *settings.slow_imports)


class ForkServerProcess:
    """One fork server, from its start to its end."""

    def __init__(
        self,
        config: EnvironmentProcessConfig,
        key: ForkServerKey,
        imports: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._key = key
        self._imports = tuple(imports)
        self.forking = asyncio.Semaphore(MAX_FORKING)  # from the order until the walls stand
        self.interrupt = Interrupt()  # breaks off `start` from another thread
        self._process: ChildProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = bytearray()
        self._ended: Ended = lambda number, code: None
        self._lost: Callable[[], None] = lambda: None

    @property
    def pid(self) -> int | None:
        """Process id of the outermost process, None when there is none."""
        return self._process.popen.pid if self._process else None

    def start(self) -> None:
        """Start the process, which takes about a second. Raises Interrupted by `interrupt`, and
        ValueError, with the cure, if the machine does not give the isolation or the interpreter.

        If a shared import fails, hangs or starts threads, each process imports for itself.
        """
        isolation = Isolation(self._config.isolation)
        # asking another interpreter may take a second
        interpreter = at(self._key.interpreter) if self._key.interpreter else own()

        def started(imports: Sequence[str]) -> ChildProcess:
            return start_walled(
                lambda socket_fd, users: command(
                    self._config,
                    socket_fd,
                    users,
                    imports=imports,
                    has_network=self._key.has_network,
                    interpreter=interpreter,
                ),
                isolation,
                env=ENVIRONMENT if isolation is Isolation.LANDLOCK else {},
                limit_s=START_S,
                interrupt=self.interrupt,
            )

        try:
            if isolation is Isolation.LANDLOCK and (closed := closed_to_nobody(interpreter)):
                raise NotStarted(f"could not read Python, {closed} is closed to others")
            try:
                self._process = started(self._imports)
            except NotStarted as error:
                if not self._imports:
                    raise
                LOG.warning(
                    "environment processes import for themselves: modules=%s %s",
                    self._imports,
                    error,
                )
                self._process = started(())
        except NotStarted as error:
            raise ValueError(
                f"environments need the isolation {self._config.isolation!r}, this machine does not"
                f" give it: the fork server of their processes {error}; {CURES[isolation]}"
            ) from error

    def attach(self, ended: Ended, lost: Callable[[], None]) -> None:
        """Report ends of processes to the running event loop. ended: called with a process's number
        and exit code. lost: called when the fork server's process is gone, and closes this object.
        """
        assert self._process is not None
        self._ended, self._lost = ended, lost
        self._process.stream.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._process.stream.fileno(), self._read_ends)

    def fork(self, number: int, stream: socket.socket) -> None:
        """Fork a process with this stream. Raises OSError if the fork server is gone."""
        self._send(FORK, number, stream)

    def kill(self, number: int) -> None:
        """Have a process killed with all it started; does nothing if it has ended."""
        try:
            self._send(KILL, number)
        except BlockingIOError:
            if self._loop is not None:
                self._loop.call_later(AGAIN_S, self.kill, number)
        except OSError:  # a fork server that is gone has ended it
            return

    def close(self) -> None:
        """End the fork server and all its processes; does nothing if there is none."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(process.stream.fileno())
        process.kill()

    def _send(self, order: bytes, number: int, stream: socket.socket | None = None) -> None:
        if self._process is None:
            raise ConnectionResetError("the fork server is gone")
        descriptors = [] if stream is None else [stream.fileno()]
        socket.send_fds(self._process.stream, [ORDER.pack(order, number)], descriptors)

    def _read_ends(self) -> None:
        assert self._process is not None
        try:
            received = self._process.stream.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            LOG.warning("fork server of environments lost: pid=%s", self.pid)
            self._lost()
            return
        self._received += received
        while len(self._received) >= ENDED.size:
            number, code = ENDED.unpack_from(self._received)
            del self._received[: ENDED.size]
            self._ended(number, code)


class ForkServers:
    """The fork servers of one pool. For the coroutines of one event loop."""

    def __init__(
        self,
        config: EnvironmentProcessConfig,
        settings: Iterable[EnvironmentSettings],
        ended: Ended,
        lost: Callable[[ForkServerProcess], None],
    ) -> None:
        """ended, lost: called when a process, or a fork server with its processes, is gone."""
        self._config = config
        self._ended, self._lost = ended, lost
        self._imports: dict[ForkServerKey, tuple[str, ...]] = {}
        for expected in settings:
            key = fork_server_key(expected)
            imports = (*self._imports.get(key, ()), *shared_imports(expected))
            self._imports[key] = tuple(dict.fromkeys(imports))
        self._running: dict[ForkServerKey, ForkServerProcess] = {}
        self._starting: dict[ForkServerKey, asyncio.Task[ForkServerProcess]] = {}
        self._unborn: set[ForkServerProcess] = set()

    async def warm(self) -> None:
        """Start the fork servers of the expected environments."""
        for key in self._imports:
            await self.get(key)

    async def get(self, key: ForkServerKey) -> ForkServerProcess:
        """Returns a running fork server. Raises as `ForkServerProcess.start`."""
        if key in self._running:
            return self._running[key]
        if key not in self._starting:
            self._starting[key] = asyncio.create_task(self._start(key))
        return await asyncio.shield(self._starting[key])

    async def _start(self, key: ForkServerKey) -> ForkServerProcess:
        server = ForkServerProcess(self._config, key, self._imports.get(key, ()))
        self._unborn.add(server)
        try:
            await asyncio.to_thread(server.start)
        except Interrupted as error:
            raise Crashed("this pool is closed") from error
        finally:
            self._unborn.discard(server)
            del self._starting[key]
        server.attach(self._ended, partial(self.end, server))
        self._running[key] = server
        return server

    def end(self, server: ForkServerProcess) -> None:
        """End a fork server and its processes; does nothing if it has ended."""
        for key, running in list(self._running.items()):
            if running is server:
                del self._running[key]
                server.close()
                self._lost(server)

    def close(self) -> None:
        """End all fork servers, and break off those that are starting."""
        for server in self._unborn:
            server.interrupt.set()
        for server in list(self._running.values()):
            self.end(server)
