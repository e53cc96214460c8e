"""The one run that owns a joined cluster, and new processes for the workers of an earlier run.

    claim ── held by a living run? ── wait, then refuse
      └───── used before? ── forget its actors, restart its workers ──▶ the run's

An actor leaves more in its process than it can take back: a process group, pinned threads, GPUs
seen, memory. And a flow that was killed leaves its actors at work. The owner is the flow's Dask
client, which the scheduler forgets when its process is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from distributed import Client, Scheduler

from tasks.cluster.dask_cluster import ClusterTooSmall, check_coming, worker_addresses, workers_of

logger = logging.getLogger(__name__)

OWNER = "rollflow-owner"  # of the scheduler's metadata: run id and client of the run that came last
PUBLISHED = "rollflow/"  # what the names of published actors begin with
GONE_WITHIN_S = 60.0  # a client that died without a word is missed by then
POLL_S = 0.5
RENEWAL_POLL_S = 0.2
STOPPED_WITHIN_S = 60.0  # whoever is slower, or on a host that does not answer, is not waited for
TELL_AFTER_S = 30.0  # workers come back in a few seconds where a nanny is left to start them
ANSWER_S = 30.0  # how long the scheduler may take to answer
LOST = (
    "the Dask scheduler must be there as long as the run goes on, the connection to it broke and "
    "does not come back; start the cluster again and resume the run"
)
BACK_WITHIN_S = 10.0  # a connection that only broke is made again by then


class ClusterLost(RuntimeError):
    """The scheduler is gone, and with it all that it knew of actors and tasks; nothing of it comes
    back in this run."""


async def take_cluster(
    client: Client,
    run_id: str,
    workers: Sequence[str],
    deadline_s: float,
) -> None:
    """Make the cluster this run's. Workers of an earlier run are restarted, and are back then
    within deadline_s.

    Raises ClusterTooSmall when another run goes on in it or its workers cannot be restarted.
    """
    before = await _claimed(client, run_id)
    if before is None:
        return
    logger.info("workers=%s restart after run=%s", ",".join(workers), before)
    published = await _asked(client, client.list_datasets)
    for name in published:
        if str(name).startswith(PUBLISHED):
            await _asked(client, client.unpublish_dataset, name)
    await asyncio.to_thread(renew_workers, client, workers, deadline_s)


async def _claimed(client: Client, run_id: str) -> str | None:
    """The run that the cluster worked for before; waits for the end of one that still goes on."""
    ends = time.monotonic() + GONE_WITHIN_S
    while True:
        before = await _asked(client, client.run_on_scheduler, _claim, run_id, client.id)
        if before is None:
            return None
        holder, lives = before
        if not lives:
            return str(holder)
        if time.monotonic() > ends:
            raise ClusterTooSmall(
                f"a cluster must work for one run at a time, {client.scheduler.address} works "
                f"for {holder}; "
                "wait for its end, or give another cluster.scheduler_address"
            )
        await asyncio.sleep(POLL_S)


async def _asked(client: Client, method: Callable[..., Any], *args: object) -> Any:
    """A client's method that asks the scheduler, and what it answers. Any: it is not typed."""
    try:
        return await asyncio.to_thread(method, *args, callback_timeout=ANSWER_S)
    except TimeoutError as error:
        raise TimeoutError(
            f"the scheduler must answer within {ANSWER_S:.0f} s, {client.scheduler.address} did "
            f"not answer {method.__name__}; see whether it is overloaded, or start it anew"
        ) from error


async def check_scheduler(client: Client) -> None:
    """Raise ClusterLost when the connection to the scheduler has broken and does not come back."""
    ends = time.monotonic() + BACK_WITHIN_S
    while client.status != "running":
        if client.status == "closed" or time.monotonic() > ends:
            raise ClusterLost(LOST)
        await asyncio.sleep(POLL_S)


@contextmanager
def telling_of_its_loss(client: Client) -> Iterator[None]:
    """Whatever fails in the block because the scheduler is gone fails as ClusterLost."""
    try:
        yield
    except Exception as error:
        if client.status == "running" or isinstance(error, ClusterLost):
            raise
        raise ClusterLost(LOST) from error


def _claim(run_id: str, owner: str, dask_scheduler: Scheduler) -> tuple[str, bool] | None:
    """In the scheduler: the run before and whether it still goes on, None for an unused cluster. If
    it has ended, this run is next."""
    held: tuple[str, str] | None = dask_scheduler.task_metadata.get(OWNER)
    if held is not None and held[1] != owner and held[1] in dask_scheduler.clients:
        return held[0], True
    dask_scheduler.task_metadata[OWNER] = (run_id, owner)
    return None if held is None else (held[0], False)


def renew_workers(client: Client, workers: Sequence[str], deadline_s: float) -> None:
    """Return when each of these workers is there in a new process. One that is slow to end is
    removed at once, and comes back by its nanny all the same.

    Raises ClusterTooSmall when a worker has no nanny, or is not back in time.
    """
    there = workers_of(client)
    before = {worker["name"]: address for address, worker in there.items()}
    without = [name for name in workers if name in before and not there[before[name]]["nanny"]]
    if without:
        raise ClusterTooSmall(
            "workers must be under a nanny, which gives them new processes, "
            f"{', '.join(without)} are not; start them anew without --no-nanny (Dask's default)"
        )
    began_s, is_told = time.monotonic(), False
    old = [before[name] for name in workers if name in before]
    if old:
        # the client's own call waits for any new worker, and fails where one goes meanwhile
        client.sync(
            client.scheduler.restart_workers,
            workers=old,
            timeout=min(deadline_s, STOPPED_WITHIN_S),
            wait_for_workers=False,
            on_error="return",
            stimulus_id="rollflow-renewal",
        )
    while missing := sorted(set(workers) - _renewed(client, before)):
        check_coming(client, missing)
        elapsed_s = time.monotonic() - began_s
        if elapsed_s > TELL_AFTER_S and not is_told:
            is_told = True
            names, left_s = ", ".join(missing), deadline_s - elapsed_s
            logger.warning("waiting %.0f s more for workers that are away: %s", left_s, names)
        if elapsed_s > deadline_s or client.status == "closed":
            raise ClusterTooSmall(
                f"workers must come back when they are restarted, {', '.join(missing)} did not "
                f"within {deadline_s:.0f} s; their own output and that of their nannies say why; "
                "start them again, then resume the run"
            )
        time.sleep(RENEWAL_POLL_S)


def _renewed(client: Client, before: dict[str, str]) -> set[str]:
    now = worker_addresses(client)
    return {name for name, address in now.items() if address != before.get(name)}
