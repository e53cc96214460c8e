"""Whole runs on simulated engines: real flow, cluster, rewards, learners, gate, records and MLflow;
what the engines say is written, not sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.conftest import Launcher

pytestmark = pytest.mark.flow

SIMULATED = (
    "engine.kind=simulated",
    "engine.says=chain_sums",
    "engine.max_model_len=256",
)


def test_x(launcher: Launcher, tmp_path: Path) -> None:
    import time

    for place in range(2):
        t = time.time()
        finished = launcher.run(tmp_path, *SIMULATED, f'run_name="r{place}"')
        print("took", time.time() - t)
        assert finished.code == 0, finished.err
    print(finished.err[-3000:])
    print(finished.out[-3000:])
    for s in (tmp_path / "r0" / "steps").glob("*.json"):
        c = json.loads(s.read_text())
        print(c["timings"], c["weights"], c["metrics"].get("reward/mean"))
    for s in (tmp_path / "r1" / "steps").glob("*.json"):
        c = json.loads(s.read_text())
        print(c["timings"], c["weights"], c["metrics"])
