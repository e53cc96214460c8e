"""Calls methods of long-lived actors on named workers; every call has a deadline.

    remote = Remote.connect(run_id, "engine-0")         in a task on any worker
    await remote.call("submit", payload, deadline_s=30)

Payloads are bytes. Leaves out how actors are created and replaced (`registry`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from distributed import Client, get_client
from distributed.client import FutureCancelledError

LOOK_S = 1.0  # between two checks that the worker of an actor is still there
DONE_LOOK_S = 0.02  # between two checks that a future is done
FETCH_S = 30.0  # for an actor's handle, once the actor is created


class ActorLost(RuntimeError):
    """The actor's worker died or does not answer; a new generation must be created."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A caller's handle on one actor. Every actor class has close(), and ping(), which raises if
    the actor cannot go on."""

    name: str
    actor: Any  # Any: Dask's proxy resolves methods at run time
    loop: asyncio.AbstractEventLoop  # the event loop that Dask's communication runs on

    @classmethod
    def connect(cls, run_id: str, name: str, client: Client | None = None) -> Remote:
        """Connect to the current generation of an actor. Works in the flow's process and in tasks,
        and in any thread that is given their client. Raises ActorLost if the actor is gone."""
        client = client or get_client()
        try:
            actor = result_of(client.get_dataset(published_name(run_id, name)), 30)
        except (KeyError, RuntimeError, OSError, FutureCancelledError) as error:
            raise ActorLost(f"{name} is not there: {_reason(error)}") from error
        return cls(name, actor, client.loop.asyncio_loop)

    async def call(
        self, method: str, *args: object, deadline_s: float
    ) -> Any:  # Any: whatever the method returns
        """Call a method from any event loop. Raises ActorLost when the worker is gone, TimeoutError
        after deadline_s, or what the method raises."""
        limit = asyncio.timeout(deadline_s)
        try:
            pending = getattr(self.actor, method)(*args)
            answer = asyncio.run_coroutine_threadsafe(_await(pending), self.loop)
            async with limit:
                return await self._answered(asyncio.wrap_future(answer), method)
        except TimeoutError as error:
            if not limit.expired():  # the actor's method itself raised it
                raise
            raise TimeoutError(
                f"{self.name}.{method} did not answer within {deadline_s:.0f} s"
            ) from error
        except (OSError, RuntimeError) as error:
            if means_lost(error):
                raise ActorLost(
                    f"{self.name} was lost during {method}: {_reason(error)}"
                ) from error
            raise

    async def _answered(self, answer: asyncio.Future[Any], method: str) -> Any:  # Any: see call
        """Wait for the answer, for less than Dask, which tries for half a minute to reach a process
        that has just ended: a look-up of the method raises RuntimeError once Dask knows of that."""
        try:
            while not (await asyncio.wait((answer,), timeout=LOOK_S))[0]:
                getattr(self.actor, method)
            return answer.result()
        finally:
            answer.cancel()


async def _await(pending: Awaitable[Any]) -> Any:  # Any: see Remote.call
    return await pending


def means_lost(error: Exception) -> bool:
    """True if this is an error by which Dask reports that the worker of an actor is gone."""
    return "Actor" in str(error) and ("lost" in str(error) or "contact" in str(error))


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def result_of(future: Any, timeout_s: float) -> Any:  # Any: Dask's future, and what it holds
    """Wait for a Dask future; returns its result. Raises the future's error, or TimeoutError if it
    is not done after timeout_s."""
    # fetched only when done: a fetch that is cancelled as it begins stays in the Dask client, and
    # every later fetch of any thread fails with an UnboundLocalError
    ends = time.monotonic() + timeout_s
    while not future.done():
        if time.monotonic() >= ends:
            raise TimeoutError(f"not done within {timeout_s:g} s")
        time.sleep(DONE_LOOK_S)
    return future.result(timeout=FETCH_S)


def published_name(run_id: str, name: str) -> str:
    """Name under which an actor is published as a data set of Dask."""
    return f"rollflow/{run_id}/{name}"
