"""An environment in a process of its own, with calls that block. `build` of some settings returns
one because this process cannot import the environment.

The process belongs to an event loop in a thread. Its walls and limits are the defaults of
`EnvironmentProcessConfig`. An unpickled copy has another process, in which the seed and the actions
so far are replayed.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import threading
import weakref
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, TypeVar

from tasks.environments.base import EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.processes.environment_process import EnvironmentProcess
from tasks.environments.processes.fork_servers import (
    ForkServerKey,
    ForkServers,
    fork_server_key,
    shared_imports,
)

CONFIG = EnvironmentProcessConfig()
Answer = TypeVar("Answer")
_numbers = itertools.count(1)
_servers: dict[tuple[ForkServerKey, tuple[str, ...]], ForkServers] = {}


class BlockingEnvironment:
    """An environment in a process of its own. A call that raises EnvironmentFailed is the last."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        """Make the environment. Raises ValueError, with the cure, if that fails."""
        self._settings = settings
        self._seed, self._actions = 0, list[str]()
        try:
            self._process = _awaited(_started(settings))
        except EnvironmentFailed as error:
            raise ValueError(
                f"an environment must be made without a failure, this one was not: {error}; correct"
                " its configuration"
            ) from error
        weakref.finalize(self, _loop().call_soon_threadsafe, self._process.kill)

    def reset(self, seed: int) -> str:
        self._seed, self._actions = seed, []
        return _awaited(self._process.reset(seed))

    def step(self, text: str) -> Transition:
        self._actions.append(text)
        return _awaited(self._process.step(text))

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as pickle has it
        return _replayed, (self._settings, self._seed, tuple(self._actions))


def _replayed(
    settings: EnvironmentSettings, seed: int, actions: tuple[str, ...]
) -> BlockingEnvironment:
    environment = BlockingEnvironment(settings)
    environment.reset(seed)
    for action in actions:
        environment.step(action)
    return environment


async def _started(settings: EnvironmentSettings) -> EnvironmentProcess:
    key, imports = fork_server_key(settings), shared_imports(settings)
    if (key, imports) not in _servers:
        _servers[key, imports] = ForkServers(
            CONFIG, (settings,), ended=lambda number, code: None, lost=lambda server: None
        )
    server = await _servers[key, imports].get(key)
    process = EnvironmentProcess(next(_numbers), settings, server, CONFIG, late=lambda: None)
    try:
        await process.start()
        await process.make()
    except BaseException:
        process.kill()
        raise
    return process


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="blocking-environments", daemon=True).start()
    return loop


def _awaited(call: Coroutine[Any, Any, Answer]) -> Answer:
    return asyncio.run_coroutine_threadsafe(call, _loop()).result()


@atexit.register
def close() -> None:
    """End every fork server of this module, and all their processes."""

    async def end() -> None:
        while _servers:
            _servers.popitem()[1].close()

    if _servers:
        _awaited(end())
