"""An environment in a process of its own, for a caller that waits: what `build` gives of one that
this process cannot import.

    build: fork ─▶ walls ─▶ make      reset, step: an order ─▶ its answer

The walls and limits are the defaults of `EnvironmentProcessConfig`. A copy by pickle has another
process, which the same seed and actions lead to where this one is.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import socket
import time
import weakref
from typing import Any

from artifacts.episodes import Ending
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.processes.answers import (
    max_answer_bytes,
    read_made,
    read_observation,
    read_transition,
)
from tasks.environments.processes.environment_process import (
    WALLS_S,
    as_crash,
    crashed,
    pickled_recipe,
)
from tasks.environments.processes.fork_servers import (
    ForkServerKey,
    ForkServerProcess,
    fork_server_key,
    shared_imports,
    start_fork_server,
)
from tasks.environments.processes.process_main import (
    CONFINED,
    LENGTH,
    MAKE,
    RECIPE,
    RESET,
    STEP,
    framed,
    split_state,
)

CONFIG = EnvironmentProcessConfig()
_numbers = itertools.count(1)
_origins: dict[tuple[ForkServerKey, tuple[str, ...]], ForkServerProcess] = {}


class BlockingEnvironment:
    """One episode at a time. Calls raise EnvironmentFailed; nothing more can be asked then."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        """ValueError, with the cure, for an environment that cannot be made."""
        self._settings = settings
        self._seed, self._actions = 0, list[str]()
        try:
            self._line = _Line(settings)
            self._line.send(RECIPE + pickled_recipe(settings))
            with as_crash():
                read_made(self._line.ask(MAKE, CONFIG.reset_s))
        except EnvironmentFailed as error:
            raise ValueError(
                f"an environment must be made without a failure, this one was not: {error}; correct"
                " its configuration"
            ) from error

    def reset(self, seed: int) -> str:
        self._seed, self._actions = seed, []
        body = self._line.ask(RESET + str(seed).encode("ascii"), CONFIG.reset_s)
        with as_crash():
            return read_observation(body, CONFIG.max_observation_chars)

    def step(self, text: str) -> Transition:
        self._actions.append(text)
        body = self._line.ask(STEP + text.encode("utf-8", "surrogatepass"), CONFIG.step_s)
        with as_crash():
            return read_transition(split_state(body)[0], CONFIG.max_observation_chars)

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as pickle has it
        return _led_back, (self._settings, self._seed, tuple(self._actions))


def _led_back(
    settings: EnvironmentSettings, seed: int, actions: tuple[str, ...]
) -> BlockingEnvironment:
    environment = BlockingEnvironment(settings)
    environment.reset(seed)
    for action in actions:
        environment.step(action)
    return environment


class _Line:
    """A process, and what is said to it. It ends with this object."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        """ValueError, with the cure, if there can be no process of such walls."""
        number = next(_numbers)
        self._stream, theirs = socket.socketpair()
        with theirs:
            origin = _forked(settings, number, theirs)
        weakref.finalize(self, _end, origin, number, self._stream)
        if (told := self._answer(WALLS_S)) != CONFINED:
            raise crashed(f"its walls do not stand: {told.decode('utf-8', 'replace')}")

    def send(self, order: bytes) -> None:
        """Give an order."""
        try:
            self._stream.sendall(framed(order))
        except OSError as error:
            raise crashed("its process closed the stream") from error

    def ask(self, order: bytes, limit_s: float) -> bytes:
        """The answer to an order."""
        self.send(order)
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> bytes:
        deadline_s = time.monotonic() + limit_s
        try:
            (length,) = LENGTH.unpack(self._received(LENGTH.size, deadline_s))
            if length > max_answer_bytes(CONFIG.max_observation_chars):
                raise crashed(f"an answer of {length} bytes is too long")
            return self._received(length, deadline_s)
        except TimeoutError as error:
            raise EnvironmentFailed(Ending.UNANSWERED, f"no answer within {limit_s:g} s") from error
        except OSError as error:
            raise crashed("its process closed the stream") from error

    def _received(self, count: int, deadline_s: float) -> bytes:
        found = bytearray()
        while len(found) < count:
            self._stream.settimeout(max(deadline_s - time.monotonic(), 1e-6))
            chunk = self._stream.recv(count - len(found))
            if not chunk:
                raise ConnectionResetError
            found += chunk
        self._stream.settimeout(None)
        return bytes(found)


def _forked(settings: EnvironmentSettings, number: int, stream: socket.socket) -> ForkServerProcess:
    """The origin of the process at the other end of this stream; one for all of a kind."""
    place, imports = fork_server_key(settings), shared_imports(settings)
    origin = _origins.get((place, imports))
    if origin is None:
        origin = ForkServerProcess(
            CONFIG, imports, has_network=place.has_network, interpreter=place.interpreter
        )
        start_fork_server(origin, CONFIG)
        _origins[place, imports] = origin
    try:
        origin.forget_ends()
        origin.fork(number, stream)
    except OSError as error:
        _origins.pop((place, imports)).close()
        raise crashed(f"no process could be forked: {error}") from error
    return origin


def _end(origin: ForkServerProcess, number: int, stream: socket.socket) -> None:
    stream.close()
    origin.kill(number)


@atexit.register
def close() -> None:
    """End every process."""
    while _origins:
        with contextlib.suppress(OSError):
            _origins.popitem()[1].close()
