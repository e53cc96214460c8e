"""Who is in the cluster is what the scheduler says when it is asked, whatever Dask's client looks
up beside."""

from __future__ import annotations

import asyncio

import dask
from distributed import Client, LocalCluster

from tasks.cluster.dask_cluster import worker_addresses
from tasks.elastic.workers import JoinedWorkers


def test_no_look_misses_a_worker_that_is_there() -> None:
    often = {"distributed.client.scheduler-info-interval": "2ms"}
    with (
        dask.config.set(often),
        LocalCluster(n_workers=2, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        looks = [len(worker_addresses(client)) for _ in range(1000)]
    assert set(looks) == {2}


def test_a_scheduler_that_is_gone_says_nothing_of_elastic_workers() -> None:
    with LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as cluster:
        client = Client(cluster)
        workers = JoinedWorkers(client, token="")
        assert asyncio.run(workers.poll()) is not None
        client.close()
        assert asyncio.run(workers.poll()) is None
        assert worker_addresses(client) == {}
