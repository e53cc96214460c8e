"""New processes for workers, which keep their names; what the old processes held is gone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from distributed import Client

from tasks.cluster.dask_cluster import ClusterTooSmall, worker_addresses, workers_of

POLL_S = 0.2


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
    old = [before[name] for name in workers if name in before]
    if old:
        client.restart_workers(old, timeout=deadline_s, raise_for_error=False)
    ends = time.monotonic() + deadline_s
    while missing := sorted(set(workers) - _renewed(client, before)):
        if time.monotonic() > ends or client.status == "closed":
            raise ClusterTooSmall(
                f"workers must come back when they are restarted, {', '.join(missing)} did not "
                f"within {deadline_s:.0f} s; their own output and that of their nannies say why; "
                "start the cluster anew"
            )
        time.sleep(POLL_S)


def _renewed(client: Client, before: dict[str, str]) -> set[str]:
    now = worker_addresses(client)
    return {name for name, address in now.items() if address != before.get(name)}
