"""The workers that offer themselves as elastic workers, over the flow's Dask client.

    scheduler: who has the resource `elastic worker` ─▶ Looked
    topic of elastic workers: leases, farewells ──────▶ Renewed, Leaves
                     and what rounds give up ▶ GivenUp
    a call of the worker ────────────────────▶ CardRead, CardUnread

Every call has a deadline, and none of them raises because of a worker. Leaves out what follows
(`tasks.elastic.admission`).
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
from tasks.cluster.served import has_served
from tasks.elastic.engine import packages_of
from tasks.elastic.worker_card import (
    RESOURCE,
    TOPIC,
    WorkerCard,
    dismiss,
    is_proven,
    read_card,
    refuse,
    renew,
)
from tasks.elastic.worker_events import (
    Applicant,
    CardRead,
    CardUnread,
    GivenUp,
    Leaves,
    Looked,
    Renewed,
    WorkerEvent,
)

logger = logging.getLogger(__name__)

ANSWER_S = 30.0  # how long a worker or the scheduler may take to answer
PART_S = 5.0  # and when the run is over
RENEWED_S = 3.0  # and when it must begin anew: its name is wanted, and it may be silent
CALLS = 8  # of workers at a time: one that hangs holds up no other


class JoinedWorkers:
    """Workers of one cluster, as the flow sees them."""

    def __init__(self, client: Client, token: str) -> None:
        """token: the run's secret, empty without one."""
        self._client = client
        self._token = token
        self._calls = ThreadPoolExecutor(CALLS, thread_name_prefix="elastic")

    def listen(self, hear: Callable[[WorkerEvent], None]) -> None:
        """Tell what elastic workers say of themselves from now on; on Dask's thread."""

        def heard(event: tuple[float, object]) -> None:
            told = event_of(event[1], time.time())
            if told is not None:
                hear(told)

        self._client.subscribe_topic(TOPIC, heard)

    def part(self, addresses: Sequence[str], reason: str) -> None:
        """Dismiss these as far as they hear of it. Blocks, and needs no loop that runs."""
        if self._client.status != "running" or not addresses:
            return
        with suppress(RuntimeError, OSError):  # TimeoutError is one of these
            self._client.run(
                dismiss,
                reason,
                workers=list(addresses),
                on_error="ignore",
                callback_timeout=PART_S,
            )

    def close(self) -> None:
        """Call nobody any more."""
        self._calls.shutdown(wait=False, cancel_futures=True)

    async def look(self) -> Looked | None:
        """Who is there; None where the scheduler did not say."""
        try:
            workers = await self._call(workers_of, self._client)
        except Exception as error:  # without a scheduler the run ends, but not by this
            logger.debug("elastic workers not looked for: %s", error)
            return None
        offered = (
            address
            for address, worker in workers.items()
            if worker["resources"].get(RESOURCE, 0) > 0
        )
        return Looked(at_s=time.time(), workers=frozenset(offered))

    async def ask(self, address: str) -> CardRead | CardUnread:
        """Who this worker is."""
        try:
            card: WorkerCard = await self._run(address, read_card)
            served: bool = await self._run(address, has_served)
            now_s = time.time()
            knows = is_proven(card, self._token, address, now_s)
            applicant = applicant_of(card, knows_token=knows, has_served=served)
        except OSError as error:  # TimeoutError is one
            return CardUnread(address=address, reason=error_text(error), may_try_again=True)
        except Exception as error:  # whatever a worker with other code makes of it
            return CardUnread(address=address, reason=error_text(error), may_try_again=False)
        return CardRead(at_s=now_s, address=address, applicant=applicant)

    async def refuse(self, address: str, reason: str) -> None:
        """Tell it why it may not come, and see that it goes."""
        await self._end(address, refuse, reason)

    async def renew(self, address: str, reason: str) -> None:
        """Tell it why it must begin anew, and have its process end as one that lost its scheduler
        does, which is started again."""
        await self._end(address, renew, reason, RENEWED_S)

    async def dismiss(self, address: str, reason: str) -> None:
        """Have its process end."""
        await self._end(address, dismiss, reason)

    async def _end(
        self, address: str, how: Callable[..., None], reason: str, within_s: float = ANSWER_S
    ) -> None:
        """One that cannot be told is forgotten by the scheduler, so that its name is free."""
        try:
            await self._run(address, how, reason, within_s=within_s)
        except Exception as error:  # it is gone, silent, or no elastic worker of ours
            logger.info("worker=%s not told: %s", address, error)
            await self._forget(address)

    async def _forget(self, address: str) -> None:
        try:
            await self._call(self._client.run_on_scheduler, forget_worker, address)
        except Exception as error:  # without a scheduler there is nothing to be forgotten
            logger.warning("worker=%s not ended: %s", address, error)

    async def _run(
        self,
        address: str,
        function: Callable[..., Any],
        *args: object,
        within_s: float = ANSWER_S,
    ) -> Any:
        """What the function returns in this worker's process. Any: whatever that is."""
        asked, call = [address], self._call
        answers = await call(self._client.run, function, *args, within_s=within_s, workers=asked)
        return answers[address]

    async def _call(
        self,
        method: Callable[..., Any],
        *args: object,
        within_s: float = ANSWER_S,
        **options: object,
    ) -> Any:
        """A method of the client in a thread of ours. Any: it is not typed."""

        def call() -> Any:  # Any: as above
            return method(*args, callback_timeout=within_s, **options)

        return await asyncio.get_running_loop().run_in_executor(self._calls, call)


async def forget_worker(address: str, dask_scheduler: Scheduler) -> None:
    """In the scheduler: take this worker for gone, and tell it to close if it hears that."""
    await dask_scheduler.remove_worker(address, stimulus_id=f"elastic-worker-{time.time()}")


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def event_of(message: object, now_s: float) -> WorkerEvent | None:
    """What an elastic worker said, or a round of one; None of what is no such message."""
    match message:
        case {"kind": "lease", "name": str(name)}:
            return Renewed(at_s=now_s, worker=name)
        case {"kind": "given up", "name": str(name), "reason": str(reason)}:
            return GivenUp(elastic_worker=name, reason=reason)
        case {"kind": "leaving", "name": str(name), **rest}:
            return Leaves(worker=name, reason=str(rest.get("reason", "it leaves")))
    return None


def applicant_of(card: WorkerCard, *, knows_token: bool, has_served: bool) -> Applicant:
    """The card as the rules read it."""
    return Applicant(
        name=card["name"],
        versions=packages_of(card),
        price_class=card["price_class"],
        devices=tuple(card["devices"]),
        knows_token=knows_token,
        has_served=has_served,
        lease_s=card["lease_s"],
    )
