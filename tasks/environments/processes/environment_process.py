"""One environment process as its pool sees it: calls, each within a limit, and its end.

    start() -> reset() -> step(), ... -> reset(), ... -> kill() -> `ended`

An answer that comes when its call is over is late: it is counted and dropped.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from collections.abc import Callable
from enum import StrEnum

from artifacts.episodes import Ending
from tasks.cluster.deaths import manner
from tasks.environments.base import Crashed, EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.processes.answers import (
    max_answer_bytes,
    read_answer,
    read_observation,
    read_transition,
)
from tasks.environments.processes.fork_servers import ForkServerProcess
from tasks.environments.processes.process_main import (
    MAKE,
    RECIPE,
    RESET,
    RESTORE,
    STEP,
    split_state,
)
from tasks.isolation.frames import CONFINED, DYING_S, LENGTH, WALLS_S, framed


class ProcessState(StrEnum):
    """The states of an environment process."""

    FREE = "free"  # no episode
    RESETTING = "resetting"  # starting and building included
    THINKING = "thinking"  # the model's turn
    STEPPING = "stepping"
    DEAD = "dead"  # killed, or ended by itself, and not yet replaced


class LinkLost(Exception):
    """Raised when the process has closed its end of the stream: the process has ended, too."""


class ProcessLink(asyncio.Protocol):
    """A pool's end of the stream to one process, for one call at a time."""

    def __init__(self, max_answer_bytes: int, late: Callable[[], None]) -> None:
        """`late` is called at every answer after the end of its call."""
        self._max_answer_bytes = max_answer_bytes
        self._late = late
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()  # of an answer that is not complete
        self._answer: asyncio.Future[bytes] | None = None
        self._is_over = False  # no answer counts any more
        self._fault: Exception | None = None  # that the next call ends with

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def connection_lost(self, error: Exception | None) -> None:
        self._break(LinkLost("its process closed the stream"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (answer := self._next()) is not None:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(answer)
            elif self._is_over:
                self._late()
            else:
                self._break(Crashed("its process broke the protocol: an answer nobody asked for"))
                self.disconnect()  # one that says more and more would have the loop to itself

    def expect(self) -> None:
        """Expect the next message as the answer to a call."""
        assert self._answer is None, "one call at a time"
        self._answer = asyncio.get_running_loop().create_future()
        if self._fault is not None:
            self._fail(self._fault)

    def send(self, orders: bytes) -> None:
        """Write orders to the process without waiting."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(orders)

    async def answer(self, limit_s: float) -> bytes:
        """Await the expected answer. Raises EnvironmentFailed after limit_s or for an answer that
        breaks the protocol, and LinkLost; after that the link gives no answers."""
        assert self._answer is not None
        overdue = EnvironmentFailed(Ending.UNANSWERED, f"no answer within {limit_s:g} s")
        clock = asyncio.get_running_loop().call_later(limit_s, self._break, overdue)
        try:
            return await self._answer
        except BaseException:
            self._is_over = True
            raise
        finally:
            clock.cancel()
            self._answer = None

    def close(self) -> None:
        """Give up the running call, if any; answers that still arrive count as late."""
        self._break(LinkLost("its call was given up"))

    def disconnect(self) -> None:
        """Close the stream at once and drop what may still arrive."""
        self.close()
        self._received.clear()
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    def _break(self, fault: Exception) -> None:
        self._is_over = True
        self._fault = self._fault or fault
        self._fail(fault)

    def _fail(self, fault: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(fault)
            self._answer.exception()  # retrieved, even if nobody awaits it

    def _next(self) -> bytes | None:
        if len(self._received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._received)
        if length > self._max_answer_bytes:
            self._break(
                Crashed(f"an answer of {length} bytes, at most {self._max_answer_bytes} may be")
            )
            self.disconnect()
            return None
        end = LENGTH.size + length
        if len(self._received) < end:
            return None
        message = bytes(self._received[LENGTH.size : end])
        del self._received[:end]
        return message


class EnvironmentProcess:
    """Plays episodes one after the other. A call that raises EnvironmentFailed is the last."""

    def __init__(
        self,
        number: int,
        settings: EnvironmentSettings,
        fork_server: ForkServerProcess,
        config: EnvironmentProcessConfig,
        late: Callable[[], None],
    ) -> None:
        """`late` is called at every answer after the end of its call. Raises ValueError, with the
        cure, for settings that another process cannot have."""
        self.number = number
        self.settings = settings
        self.fork_server = fork_server
        self.slot, self.wave = 0, 0  # of its pool: number of its place, and see `Restarts`
        self.episode_id = ""
        self.snapshot = b""  # of its environment after the last step
        self.state = ProcessState.FREE
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.is_forked = False
        self.is_killed = False
        self.started_s = self.since_s = time.time()  # seconds since the epoch
        self._pickled = pickled_recipe(settings)
        self._config = config
        self._link = ProcessLink(max_answer_bytes(config.max_observation_chars), late)

    def enter(self, state: ProcessState, episode_id: str) -> None:
        """Record a new state and its episode."""
        self.state, self.episode_id, self.since_s = state, episode_id, time.time()

    async def start(self) -> None:
        """Fork the process and wait until its walls stand."""
        async with self.fork_server.forking:
            ours, theirs = socket.socketpair()
            with theirs:
                ours.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: self._link, sock=ours)
                self._link.expect()
                try:
                    if self.is_killed:
                        raise ConnectionAbortedError("its episode was ended")
                    self.fork_server.fork(self.number, theirs)
                except OSError as error:
                    self._link.disconnect()
                    raise Crashed(f"no process could be forked: {error}") from error
                self.is_forked = True
            report = await self._answer(WALLS_S)
            if report != CONFINED:
                raise Crashed(f"its walls do not stand: {report.decode('utf-8', 'replace')}")
        self._link.send(framed(RECIPE + self._pickled))

    async def make(self) -> None:
        """Make the environment, else `reset` does. Raises Unusable if it cannot work."""
        read_answer(await self._ask(MAKE, self._config.reset_s))

    async def reset(self, seed: int) -> str:
        """Begin an episode; returns the first observation. Raises Unusable if it cannot work."""
        self.snapshot = b""
        body = await self._ask(RESET + str(seed).encode("ascii"), self._config.reset_s)
        return read_observation(body, self._config.max_observation_chars)

    async def restore(self, state: bytes) -> bool:
        """Restore the environment from a state; false if the process cannot."""
        body = await self._ask(RESTORE + state, self._config.reset_s)
        is_restored = read_answer(body).get("restored") is True
        self.snapshot = state if is_restored else b""
        return is_restored

    async def step(self, text: str) -> Transition:
        """Take a turn."""
        self.snapshot = b""
        order = STEP + text.encode("utf-8", "surrogatepass")
        body, self.snapshot = split_state(await self._ask(order, self._config.step_s))
        return read_transition(body, self._config.max_observation_chars)

    def kill(self) -> None:
        """Have the process killed with all it started, without waiting for that."""
        self.is_killed = True
        self._link.close()
        if self.is_forked:
            self.fork_server.kill(self.number)

    def bury(self, code: int | None) -> None:
        """Record the end of the process. code: its exit code, None if unknown."""
        if not self.ended.done():
            self.ended.set_result(code)
        if code is None:
            self._link.disconnect()

    async def _ask(self, order: bytes, limit_s: float) -> bytes:
        self._link.expect()
        self._link.send(framed(order))
        return await self._answer(limit_s)

    async def _answer(self, limit_s: float) -> bytes:
        try:
            return await self._link.answer(limit_s)
        except LinkLost as error:
            if self.is_killed:
                raise Crashed("its episode was ended") from error
            await asyncio.wait((self.ended,), timeout=DYING_S)
            is_reported = self.ended.done()
            raise Crashed(end_text(self.ended.result()) if is_reported else str(error)) from error


def end_text(code: int | None) -> str:
    """Describe how a process ended. code: its exit code, None if its fork server is gone, too."""
    return "its fork server was lost" if code is None else f"its process {manner(code)}"


def pickled_recipe(settings: EnvironmentSettings) -> bytes:
    """Raises ValueError, with the cure, for a recipe that another process cannot load."""
    try:
        if type(settings).__module__ == "__main__":
            raise AttributeError("another process has another __main__")
        return pickle.dumps(settings.recipe())
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            "settings of environments must pickle, by a class at the top of a module,"
            f" {settings.class_name} does not: {error}; move it to a module"
        ) from error
