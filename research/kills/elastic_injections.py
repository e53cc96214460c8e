"""Random joins, drains, kills and cut links in runs with elastic workers, beside kills of the run's
own.

    python -m research.kills.elastic_injections --seed 0 --count 100 --json injections.json

Runs of `tiny` take elastic workers, which pull their weights: workers on hosts of their own
(network namespaces, where this machine makes them; else no link is cut). At random moments,
sometimes two at once, an elastic worker joins, drains (SIGTERM), is killed with SIGKILL, while it
starts or pulls weights, too, or loses its link for some seconds without anybody being told; and an
engine of the run's own, or the flow, is killed, which is gone on with by `--resume`. A place
without an elastic worker is filled again after a while. Of each run, records must say that every
prompt was trained once, with all its responses, by one weight version, and that every token is
booked; no process and no shared memory may stay. The exit status is 0 where all of that holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from artifacts.reports.elastic_workers import read_elastic_workers
from artifacts.store import Store
from research.kills.elastic_pool import ElasticPool, WorkerPlace, elastic_pool
from research.kills.injected_run import BEFORE, InjectedRun
from research.kills.injection_command import KillExperiment, perform
from research.kills.injections import Victim, engines, flow

PLACES = 3
NUM_STEPS = 300  # an elastic worker takes as long to come as forty of them
LONGEST_WAIT_S = 8.0  # an elastic worker takes ten to forty seconds to come
SETTINGS = (
    "engine.report_tokens=8",
    "evaluation.num_prompts=16",
    "evaluation.responses_per_prompt=1",
    "cluster.dashboard_port=0",
)


def present_workers(store: Store) -> set[str]:
    """Names of the elastic workers whose engine rounds may use."""
    return {worker.worker for worker in read_elastic_workers(store) if worker.state == "present"}


def among(
    find: Callable[[], list[WorkerPlace]], *, generating: bool | None = None
) -> Callable[[InjectedRun], list[WorkerPlace]]:
    """Nobody before the first step: an elastic worker has nothing to do then. generating: whether
    they are elastic workers that rounds may ask, or workers on their way there; None for either."""

    def found(run: InjectedRun) -> list[WorkerPlace]:
        if run.stage == BEFORE:
            return []
        present = present_workers(Store.open(str(run.folder)))
        return [place for place in find() if generating in (None, place.name in present)]

    return found


def victims(park: ElasticPool) -> Mapping[str, Victim]:
    """What may happen; half as many elastic workers join at once as leave, the others after a
    pause."""
    there, coming = among(park.filled, generating=True), among(park.filled, generating=False)
    linked, pulling = among(park.linked, generating=True), among(park.transferring)
    at_links = 1 if park.has_links else 0
    table = {
        "elastic worker joined": Victim(weight=2, find=among(park.empty), strike=park.fill),
        "elastic worker drained": Victim(weight=3, find=there, strike=park.drain),
        "elastic worker killed": Victim(weight=3, find=there, strike=park.kill),
        "coming elastic worker killed": Victim(weight=2, find=coming, strike=park.kill),
        "pulling elastic worker killed": Victim(
            weight=2 * at_links, find=pulling, strike=park.kill
        ),
        "link cut": Victim(weight=3 * at_links, find=linked, strike=park.cut),
        "engine killed": Victim(weight=2, find=engines),
        "flow killed": Victim(weight=1, find=flow, ends_run=True),
    }
    return {name: victim for name, victim in table.items() if victim.weight}


def main() -> int:
    with elastic_pool(PLACES) as park:
        return perform(
            KillExperiment(
                name="research.kills.elastic_injections",
                about=(__doc__ or "").splitlines()[0],
                preset="tiny",
                settings=(*SETTINGS, *park.settings),
                victims=victims(park),
                others=park.processes,
                longest_wait_s=LONGEST_WAIT_S,
                num_steps=NUM_STEPS,
            )
        )


if __name__ == "__main__":
    sys.exit(main())
