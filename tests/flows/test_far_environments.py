"""A run whose environments live on two other hosts, one of which falls silent while episodes are
played: every episode is trained once."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from artifacts.episodes import Ending
from artifacts.journal import Journal
from artifacts.records import Fate
from artifacts.reports.environment_processes import read_pools
from artifacts.store import Store
from research.kills.joined_cluster import JoinedCluster
from research.kills.network_hosts import network_hosts, why_not
from tests.flows.conftest import ENDS_WITHIN_S, Launcher, wait_for

NO_HOSTS = why_not()
pytestmark = [
    pytest.mark.flow,
    pytest.mark.skipif(bool(NO_HOSTS), reason=NO_HOSTS or "hosts can be made"),
]

GAME = '{"kind": "guess", "style": "terse", "largest": 10, "max_turns": 6}'
SLOW_GAMES = (
    "engine.kind=simulated",
    "engine.max_model_len=96",
    "engine.profile.lengths.median_tokens=3",
    'environments.guess={"kind": "custom", "path": "research.kills.delayed:delayed",'
    f' "kwargs": {{"environment": {GAME}, "mean_s": 1.0}}}}',
    "sampling.max_response_tokens=64",
    "stream_trainer.enabled=false",
    'cluster.roles="rollout: 0, learner: 1, environment: 2"',
)
IN_MID_EPISODE_S = 2.0
WORKERS = ("control", "engine-0", "learner-0")
FAR = {"environment-0": "one", "environment-1": "two"}  # worker to host


def test_a_host_of_environments_that_falls_silent_costs_no_episode(
    launcher: Launcher, tmp_path: Path
) -> None:
    root, run = tmp_path / "runs", tmp_path / "runs" / "far"
    with network_hosts(*FAR.values()) as hosts:
        far = {worker: partial(hosts.run_in, host) for worker, host in FAR.items()}
        near = launcher.start_dask
        cluster = JoinedCluster(
            launcher.environment, tmp_path / "dask", WORKERS, hosts.here, near, far
        )
        with closing(cluster):
            address = f"cluster.scheduler_address={cluster.address}"
            kind = "cluster.device_kind=cpu"
            process = launcher.start(
                root, *SLOW_GAMES, f'run_name="{run.name}"', kind, address, preset="tiny-agent"
            )
            wait_for(run / "steps" / "00001.json", process)
            wait_for(run / "plans" / "00002.json", process)
            time.sleep(IN_MID_EPISODE_S)
            hosts.cut("one")
            _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    store = Store.open(str(run))
    rows = [row for step in (1, 2) for row in Journal(store).read(step)]
    assert [row.fate for row in rows] == [Fate.TRAINED] * 32
    assert len({row.response.generated.response_id for row in rows}) == 32
    endings = [row.response.generated.episode for row in rows]
    assert {episode.ending for episode in endings if episode} <= {Ending.TERMINATED, Ending.TURNS}
    told = (tmp_path / "dask" / "dask.log").read_text()  # of the cluster's workers
    assert "worker=environment-0 of environments lost" in told
    assert "loses its worker of environments for the 1. time" in told
    pools = {pool.name: pool for pool in read_pools(store)}
    assert pools["environment-1"].num_steps > pools["environment-0"].num_steps
