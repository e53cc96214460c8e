"""The planner in a real run: a profile asks for replicas of two devices, and the fleet rebuilds its
engines before the round.

Real vLLM with tensor parallelism over two CPU devices. That the run ends well says that the new
engines hold the learner's weights: the sync gate compares them after every publication, that of the
rebuilding included.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks.scheduling.layout_planner import ThroughputPoint, ThroughputProfile
from tests.flows.conftest import Launcher, Settings, of_both_kinds

pytestmark = [pytest.mark.flow, pytest.mark.engine]

FASTER_TOGETHER = ThroughputProfile(
    model="made up",
    device="cpu",
    kv_tokens={1: 10_000, 2: 20_000},
    points=tuple(
        ThroughputPoint(
            size=size, batch=8, length=32, prefill_tokens_per_s=rate, decode_tokens_per_s=rate
        )
        for size, rate in ((1, 10.0), (2, 1000.0))
    ),
)


@of_both_kinds
def test_the_engines_are_rebuilt_over_both_devices_before_the_round(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(FASTER_TOGETHER.to_json())
    run = tmp_path / "relayout"
    planner = f'planner={{"enabled": true, "profile": "{profile}"}}'
    finished = launcher.run(tmp_path, f'run_name="{run.name}"', planner, *trained)
    assert finished.code == 0, finished.err
    commits = [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]
    assert [commit["metrics"]["engine/replicas"] for commit in commits] == [1.0, 1.0]
    rebuilding_s = [commit["metrics"]["engine/relayout_s"] for commit in commits]
    assert rebuilding_s[0] > 0
    assert rebuilding_s[1] == 0, "the layout stays while the planner wants nothing else"
    assert commits[-1]["planner"]["sync"] == {"size": 2, "preemptions": 0, "quiet_rounds": 2}
    assert 0 < commits[-1]["metrics"]["engine/kv_usage_max"] < 1
    rows = pq.read_table(run / "responses" / "step=00001").to_pylist()
    assert {row["engine"] for row in rows} == {"engine-0"}
