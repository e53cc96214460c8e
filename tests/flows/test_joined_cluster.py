"""Runs on a Dask cluster that is not theirs: one after the other, after a flow that was killed, and
after the death of its scheduler."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from research.kills.joined_cluster import JoinedCluster
from tests.flows.conftest import ENDS_WITHIN_S, SIMULATED, Launcher, wait_for

pytestmark = pytest.mark.flow


WORKERS = ("control", "engine-0", "learner-0", "learner-1")
ROLES = 'cluster.roles="rollout: 0, learner: 0-1"'


def committed(run: Path) -> list[int]:
    """Steps that are committed."""
    return [
        int(json.loads(path.read_text())["step"]) for path in sorted((run / "steps").glob("*.json"))
    ]


def test_a_cluster_serves_run_after_run_and_a_dead_scheduler_costs_a_resume(
    launcher: Launcher, tmp_path: Path
) -> None:
    """With two learners, whose process group no process can enter twice; the engines are
    simulated."""
    root, run = tmp_path / "runs", tmp_path / "runs" / "joined"
    joined = partial(JoinedCluster, launcher.environment, workers=WORKERS, near=launcher.start_dask)
    with closing(joined(scratch=tmp_path / "first")) as cluster:
        address = f"cluster.scheduler_address={cluster.address}"
        process = launcher.start(root, *SIMULATED, f'run_name="{run.name}"', ROLES, address)
        wait_for(run / "steps" / "00001.json", process)
        os.kill(process.pid, signal.SIGKILL)  # its actors work on, in the second step
        process.communicate()
        patience = "deadlines.start_s=150"  # for how long a lost scheduler is looked for
        resumed = launcher.start(root, address, "num_steps=4", patience, resume=run.name)
        wait_for(run / "steps" / "00003.json", resumed)
        cluster.scheduler.kill()
        _, err = resumed.communicate(timeout=ENDS_WITHIN_S)
        assert resumed.returncode != 0
        assert "start the cluster again and resume the run" in err, err
    with closing(joined(scratch=tmp_path / "second")) as cluster:
        ended = launcher.run(
            root, f"cluster.scheduler_address={cluster.address}", "num_steps=4", resume=run.name
        )
    assert ended.code == 0, ended.err
    assert committed(run) == [1, 2, 3, 4]
    changes = json.loads((run / "manifest.json").read_text())["changes"]
    assert [change["after"] for change in changes if change["field"] == "num_steps"] == ["4"]
