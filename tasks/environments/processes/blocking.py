"""An environment in a process of its own, with calls that block. `build` of some settings returns
one because this process cannot import the environment.

    build: fork ─▶ walls ─▶ make      reset, step: an order ─▶ its answer

The walls and limits are the defaults of `EnvironmentProcessConfig`. An unpickled copy has another
process, in which the seed and the actions so far are replayed.
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
    as_crash,
    check_confined,
    crashed,
    pickled_recipe,
)
from tasks.environments.processes.fork_servers import (
    ForkServerKey,
    ForkServerProcess,
    fork_server_key,
    shared_imports,
)
from tasks.environments.processes.process_main import MAKE, RECIPE, RESET, STEP, split_state
from tasks.isolation.frames import WALLS_S, framed, receive_bytes

CONFIG = EnvironmentProcessConfig()
_numbers = itertools.count(1)
_servers: dict[tuple[ForkServerKey, tuple[str, ...]], ForkServerProcess] = {}


class BlockingEnvironment:
    """An environment in a process of its own, which plays one episode at a time. A call that raises
    EnvironmentFailed leaves it unusable."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        """Start the process and make the environment. Raises ValueError, with the cure, if that
        fails."""
        self._settings = settings
        self._seed, self._actions = 0, list[str]()
        try:
            number = next(_numbers)
            self._stream, theirs = socket.socketpair()
            with theirs:
                server = _forked(settings, number, theirs)
            weakref.finalize(self, _end, server, number, self._stream)
            check_confined(self._answer(WALLS_S))
            self._send(RECIPE + pickled_recipe(settings))
            with as_crash():
                read_made(self._ask(MAKE, CONFIG.reset_s))
        except EnvironmentFailed as error:
            raise ValueError(
                f"an environment must be made without a failure, this one was not: {error}; correct"
                " its configuration"
            ) from error

    def reset(self, seed: int) -> str:
        self._seed, self._actions = seed, []
        body = self._ask(RESET + str(seed).encode("ascii"), CONFIG.reset_s)
        with as_crash():
            return read_observation(body, CONFIG.max_observation_chars)

    def step(self, text: str) -> Transition:
        self._actions.append(text)
        body = self._ask(STEP + text.encode("utf-8", "surrogatepass"), CONFIG.step_s)
        with as_crash():
            return read_transition(split_state(body)[0], CONFIG.max_observation_chars)

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as pickle has it
        return _replayed, (self._settings, self._seed, tuple(self._actions))

    def _ask(self, order: bytes, limit_s: float) -> bytes:
        self._send(order)
        return self._answer(limit_s)

    def _send(self, order: bytes) -> None:
        try:
            self._stream.settimeout(None)
            self._stream.sendall(framed(order))
        except OSError as error:
            raise crashed("its process closed the stream") from error

    def _answer(self, limit_s: float) -> bytes:
        max_bytes = max_answer_bytes(CONFIG.max_observation_chars)
        try:
            return receive_bytes(self._stream, max_bytes, time.monotonic() + limit_s)
        except TimeoutError as error:
            raise EnvironmentFailed(Ending.UNANSWERED, f"no answer within {limit_s:g} s") from error
        except ConnectionResetError as error:
            raise crashed("its process closed the stream") from error
        except ConnectionError as error:
            raise crashed(f"its process broke the protocol: {error}") from error


def _replayed(
    settings: EnvironmentSettings, seed: int, actions: tuple[str, ...]
) -> BlockingEnvironment:
    environment = BlockingEnvironment(settings)
    environment.reset(seed)
    for action in actions:
        environment.step(action)
    return environment


def _forked(settings: EnvironmentSettings, number: int, stream: socket.socket) -> ForkServerProcess:
    """Fork a process with this stream; returns its fork server, one for all environments of a
    kind."""
    key, imports = fork_server_key(settings), shared_imports(settings)
    server = _servers.get((key, imports))
    if server is None:
        server = ForkServerProcess(CONFIG, key, imports)
        server.start()
        _servers[key, imports] = server
    try:
        server.forget_ends()
        server.fork(number, stream)
    except OSError as error:
        _servers.pop((key, imports)).close()
        raise crashed(f"no process could be forked: {error}") from error
    return server


def _end(server: ForkServerProcess, number: int, stream: socket.socket) -> None:
    stream.close()
    server.kill(number)


@atexit.register
def close() -> None:
    """End every fork server of this module, and all their processes."""
    while _servers:
        with contextlib.suppress(OSError):
            _servers.popitem()[1].close()
