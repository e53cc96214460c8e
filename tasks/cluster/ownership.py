"""Gives a joined cluster to one run at a time, and restarts the workers of an earlier run.

    claim ── held by a living run? ── wait, then refuse
      └───── used before? ── forget its actors, restart its workers ──▶ the cluster is this run's

A worker's process cannot be reused, because an actor leaves state in it: a process group, pinned
threads, initialised GPUs, memory. The owner is the flow's Dask client, which the scheduler forgets
when the flow's process is gone.
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

OWNER = "rollflow-owner"  # key of the scheduler's metadata: run id and client of the last run
PUBLISHED = "rollflow/"  # prefix of the names of published actors
GONE_WITHIN_S = 60.0  # the scheduler has noticed by then that a client was killed
POLL_S = 0.5
RENEWAL_POLL_S = 0.2
STOPPED_WITHIN_S = 60.0  # longest wait for a worker to end, such as one on a silent machine
TELL_AFTER_S = 30.0  # before a warning; workers with a living nanny come back in a few seconds
ANSWER_S = 30.0  # how long the scheduler may take to answer
LOST = (
    "the Dask scheduler must be there as long as the run goes on, the connection to it broke and "
    "does not come back; start the cluster again and resume the run"
)
BACK_WITHIN_S = 10.0  # a broken connection to a living scheduler is restored by then


class ClusterLost(RuntimeError):
    """The scheduler is gone, with all actors of this run; another cluster must resume it."""


async def take_cluster(
    client: Client, run_id: str, workers: Sequence[str], deadline_s: float
) -> None:
    """Make this run the owner of the cluster. If an earlier run used it, its actors are forgotten
    and these workers restarted, within deadline_s. Raises ClusterTooSmall if another run is still
    active after GONE_WITHIN_S, or if the workers cannot be restarted."""
    ends = time.monotonic() + GONE_WITHIN_S
    while True:
        claimed = await _asked(client, client.run_on_scheduler, _claim, run_id, client.id)
        if claimed is None:
            return
        before, lives = claimed
        if not lives:
            break
        if time.monotonic() > ends:
            raise ClusterTooSmall(
                f"a cluster must work for one run at a time, {client.scheduler.address} works "
                f"for {before}; "
                "wait for its end, or give another cluster.scheduler_address"
            )
        await asyncio.sleep(POLL_S)
    logger.info("workers=%s restart after run=%s", ",".join(workers), before)
    published = await _asked(client, client.list_datasets)
    for name in published:
        if str(name).startswith(PUBLISHED):
            await _asked(client, client.unpublish_dataset, name)
    await asyncio.to_thread(renew_workers, client, workers, deadline_s)


async def _asked(client: Client, method: Callable[..., Any], *args: object) -> Any:
    """Call a client's method that asks the scheduler; returns the answer. Raises TimeoutError after
    ANSWER_S. Any: the client is not typed."""
    try:
        return await asyncio.to_thread(method, *args, callback_timeout=ANSWER_S)
    except TimeoutError as error:
        raise TimeoutError(
            f"the scheduler must answer within {ANSWER_S:.0f} s, {client.scheduler.address} did "
            f"not answer {method.__name__}; see whether it is overloaded, or start it anew"
        ) from error


async def check_scheduler(client: Client) -> None:
    """Raise ClusterLost if the connection to the scheduler stays broken for BACK_WITHIN_S."""
    ends = time.monotonic() + BACK_WITHIN_S
    while client.status != "running":
        if client.status == "closed" or time.monotonic() > ends:
            raise ClusterLost(LOST)
        await asyncio.sleep(POLL_S)


@contextmanager
def telling_of_its_loss(client: Client) -> Iterator[None]:
    """Turn any error of the block into ClusterLost if the connection to the scheduler is gone."""
    try:
        yield
    except Exception as error:
        if client.status == "running" or isinstance(error, ClusterLost):
            raise
        raise ClusterLost(LOST) from error


def _claim(run_id: str, owner: str, dask_scheduler: Scheduler) -> tuple[str, bool] | None:
    """Runs in the scheduler. Unless the run before is active, this run becomes the owner; returns
    that run's id, and True if it is active; None for an unused cluster."""
    held: tuple[str, str] | None = dask_scheduler.task_metadata.get(OWNER)
    if held is not None and held[1] != owner and held[1] in dask_scheduler.clients:
        return held[0], True
    dask_scheduler.task_metadata[OWNER] = (run_id, owner)
    return None if held is None else (held[0], False)


def renew_workers(client: Client, workers: Sequence[str], deadline_s: float) -> None:
    """Restart these workers; returns when each of them has joined again with a new process. A
    worker that is slow to end is removed, and its nanny still restarts it.

    Raises ClusterTooSmall if a worker has no nanny, or has not joined within deadline_s.
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
        # the client's own method waits for any new worker, and fails if one leaves meanwhile
        client.sync(
            client.scheduler.restart_workers,
            workers=old,
            timeout=min(deadline_s, STOPPED_WITHIN_S),
            wait_for_workers=False,
            on_error="return",
            stimulus_id="rollflow-renewal",
        )
    while True:
        now = worker_addresses(client)
        missing = sorted(name for name in workers if now.get(name) in (None, before.get(name)))
        if not missing:
            return
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
