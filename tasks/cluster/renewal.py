"""New processes for workers, which keep their names; what the old processes held is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from distributed import Client

from tasks.cluster.dask_cluster import ClusterTooSmall, check_coming, worker_addresses, workers_of

logger = logging.getLogger(__name__)

POLL_S = 0.2
STOPPED_WITHIN_S = 60.0  # whoever is slower, or on a host that does not answer, is not waited for
TELL_AFTER_S = 30.0  # workers come back in a few seconds where a nanny is left to start them


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
        time.sleep(POLL_S)


def _renewed(client: Client, before: dict[str, str]) -> set[str]:
    now = worker_addresses(client)
    return {name for name, address in now.items() if address != before.get(name)}
