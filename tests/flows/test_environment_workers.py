"""A run whose environments step in workers of their own, one of which is killed while episodes are
played: every episode is trained once, as it would have been, and nobody begins again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from artifacts.episodes import Ending
from artifacts.journal import Journal
from artifacts.records import Fate
from artifacts.reports.environment_processes import read_pools
from artifacts.store import Store
from tests.flows.conftest import DRAWN, Launcher, wait_for, worker_of

pytestmark = [pytest.mark.flow, pytest.mark.engine]

GAME = '{"kind": "guess", "style": "terse", "largest": 10, "max_turns": 4}'
SLOW = (  # killed in mid-episode
    '{"kind": "custom", "path": "research.kills.delayed:delayed",'
    f' "kwargs": {{"environment": {GAME}, "mean_s": 1.5}}}}'
)


def until(is_true: Callable[[], object], limit_s: float = 120.0) -> None:
    ends = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def hosts_of(worker: psutil.Process) -> list[psutil.Process]:
    """The processes of a worker's pool, with what starts them."""
    return worker.children(recursive=True)


def test_a_killed_worker_of_environments_costs_no_episode(
    launcher: Launcher, tmp_path: Path
) -> None:
    root, run = tmp_path / "runs", tmp_path / "runs" / "hosted"
    process = launcher.start(
        root,
        f'run_name="{run.name}"',
        DRAWN,
        "sampling.max_response_tokens=32",
        'cluster.roles="rollout: 0-1, learner: 0-1, environment: 2"',
        f"environments.guess={SLOW}",
        preset="tiny-agent",
    )
    wait_for(run / "steps" / "00001.json", process)
    worker = worker_of(process, "environment-0")
    # of the second step, whose other episodes go on: before that nobody would miss the worker
    until(lambda: any(turns.stat().st_size for turns in run.glob("turns/2*/*")))
    left = hosts_of(worker)
    worker.kill()
    psutil.wait_procs(left, 60)
    assert not [process for process in left if process.is_running()]
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    store = Store.open(str(run))
    rows = [row for step in (1, 2) for row in Journal(store).read(step)]
    assert [row.fate for row in rows] == [Fate.TRAINED] * 32
    assert max(Counter(row.response.generated.response_id for row in rows).values()) == 1
    for row in rows:
        episode = row.response.generated.episode
        assert episode is not None
        assert episode.ending is Ending.TERMINATED
    log = (run / "log" / "flow.log").read_text()
    assert "worker=environment-0 of environments lost, made anew" in log
    assert "replacing lost actors" not in log  # no step began again
    told = "".join(path.read_text() for path in (run / "log").glob("engine-*.log"))
    assert "loses its worker of environments" in told + log
    pools = {pool.name: pool for pool in read_pools(store)}
    assert set(pools) == {"environment-0", "environment-1"}
    assert pools["environment-1"].num_steps > 0
    page = (run / "report" / "index.html").read_text()
    assert "environment-0 on" in page
