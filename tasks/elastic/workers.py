"""Finds and calls the elastic workers of a cluster over the flow's Dask client.

    scheduler: workers with the resource `elastic` ──▶ Polled
    topic of elastic workers: leases, farewells ─────▶ Renewed, Leaves
                              given up by a round ───▶ GivenUp
    a call of the worker ────────────────────────────▶ CardRead, CardUnread

Every call has a deadline, and no call raises an error because a worker fails. Leaves out the
decisions that follow (`tasks.elastic.admission`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from distributed import Client, Scheduler

from tasks.cluster.dask_cluster import workers_of
from tasks.elastic.worker_card import (
    RESOURCE,
    TOPIC,
    Ending,
    WorkerCard,
    end_worker,
    is_proven,
    read_card,
)
from tasks.elastic.worker_events import (
    CardRead,
    CardUnread,
    GivenUp,
    Leaves,
    Polled,
    Renewed,
    WorkerEvent,
)

logger = logging.getLogger(__name__)

ANSWER_S = 30.0  # how long a worker or the scheduler may take to answer
RUN_OVER_S = 5.0  # the same, when the run is over
RENEWED_S = 3.0  # the same, when a worker must restart: it may be silent, and its name is needed
CALLS = 8  # calls to workers at a time: a worker that hangs delays no other


class JoinedWorkers:
    """The elastic workers of one cluster, as the flow sees them."""

    def __init__(self, client: Client, token: str) -> None:
        """token: the run's secret, empty without one."""
        self._client = client
        self._token = token
        self._calls = ThreadPoolExecutor(CALLS, thread_name_prefix="elastic")

    def subscribe(self, receive: Callable[[WorkerEvent], object]) -> None:
        """From now on, pass each message of an elastic worker to `receive`, on Dask's thread."""

        def handle(message: tuple[float, object]) -> None:
            event = event_of(message[1], time.time())
            if event is not None:
                receive(event)

        self._client.subscribe_topic(TOPIC, handle)

    def dismiss_all(self, addresses: Sequence[str], reason: str) -> None:
        """Dismiss the workers at these addresses, in RUN_OVER_S at most, from any thread."""
        if self._client.status != "running" or not addresses:
            return
        with suppress(RuntimeError, OSError):  # TimeoutError is one of these
            self._client.run(
                end_worker,
                "dismiss",
                reason,
                workers=list(addresses),
                on_error="ignore",
                callback_timeout=RUN_OVER_S,
            )

    def close(self) -> None:
        """Make no more calls to workers."""
        self._calls.shutdown(wait=False, cancel_futures=True)

    async def poll(self) -> Polled | None:
        """Addresses of all elastic workers; None if the scheduler did not answer."""
        try:
            workers = await self._call(workers_of, self._client)
        except Exception as error:  # without a scheduler the run ends, but not by this
            logger.debug("elastic workers not polled: %s", error)
            return None
        offered = (
            address
            for address, worker in workers.items()
            if worker["resources"].get(RESOURCE, 0) > 0
        )
        return Polled(at_s=time.time(), addresses=frozenset(offered))

    async def read_card(self, address: str) -> CardRead | CardUnread:
        """Get the card of the worker at this address; CardUnread if that fails."""
        try:
            told = await self._call(self._client.run, read_card, workers=[address])
            card: WorkerCard = told[address]
            now_s = time.time()
            if missing := WorkerCard.__required_keys__ - card.keys():
                raise ValueError(f"it has no {', '.join(sorted(missing))}")
            knows_token = is_proven(card, self._token, address, now_s)
        except Exception as error:  # a lost connection, or whatever other code makes of the call
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            is_link = isinstance(error, OSError)  # TimeoutError is one
            return CardUnread(address=address, reason=reason, may_try_again=is_link)
        return CardRead(at_s=now_s, address=address, card=card, knows_token=knows_token)

    async def end(self, address: str, how: Ending, reason: str) -> None:
        """Have the worker's process print the reason and end. If it does not answer, the scheduler
        removes the worker, so that its name is free again."""
        within_s = RENEWED_S if how == "renew" else ANSWER_S
        try:
            run, workers = self._client.run, [address]
            await self._call(run, end_worker, how, reason, within_s=within_s, workers=workers)
        except Exception as error:  # it is gone, silent, or no elastic worker of ours
            logger.info("worker=%s did not answer: %s", address, error)
            try:
                await self._call(self._client.run_on_scheduler, forget_worker, address)
            except Exception as failure:  # without a scheduler there is nothing to be forgotten
                logger.warning("worker=%s not ended: %s", address, failure)

    async def _call(
        self,
        method: Callable[..., Any],
        *args: object,
        within_s: float = ANSWER_S,
        **options: object,
    ) -> Any:
        """Call a method of the Dask client in one of our threads. Any: the client is not typed."""

        def call() -> Any:  # Any: as above
            return method(*args, callback_timeout=within_s, **options)

        return await asyncio.get_running_loop().run_in_executor(self._calls, call)


async def forget_worker(address: str, dask_scheduler: Scheduler) -> None:
    """In the scheduler: remove this worker, and have it close if it can be reached."""
    await dask_scheduler.remove_worker(address, stimulus_id=f"elastic-worker-{time.time()}")


def event_of(message: object, now_s: float) -> WorkerEvent | None:
    """The event in a message of an elastic worker or of a round; None for any other message."""
    match message:
        case {"kind": "lease", "name": str(name)}:
            return Renewed(at_s=now_s, dask_name=name)
        case {"kind": "given up", "name": str(name), "reason": str(reason)}:
            return GivenUp(name=name, reason=reason)
        case {"kind": "leaving", "name": str(name), **rest}:
            return Leaves(dask_name=name, reason=str(rest.get("reason", "it leaves")))
    return None
