"""A run whose responses a model judges: the tiny preset with a second tiny Llama as the judge,
which has no skill. The rollout engine is
simulated, the judge a real one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from artifacts.judgements import JudgementCache
from artifacts.store import Store
from tests.flows.conftest import ENDS_WITHIN_S, SIMULATED, Launcher, wait_for
from tests.flows.train_origin import Train

pytestmark = [pytest.mark.flow, pytest.mark.engine]

# so that no engine is on the core of the judge
APART = 'cluster.roles="rollout: 0, learner: 0-1, judge: 1"'


def metrics_of(run: Path) -> list[dict[str, float]]:
    """Metrics of every committed step."""
    return [
        json.loads(path.read_text())["metrics"] for path in sorted((run / "steps").glob("*.json"))
    ]


def judge_of(process: Train) -> psutil.Process:
    """The worker process of a run that holds the judge."""
    core = sorted(os.sched_getaffinity(0))[1]
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.cpu_affinity() == [core] and any(
                "/vllm/" in one.path for one in child.memory_maps()
            ):
                return child
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    raise AssertionError(f"no judge among the children of {process.pid}")


def test_a_judged_run_gets_over_a_killed_judge_and_every_response_has_a_verdict(
    launcher: Launcher, tmp_path: Path
) -> None:
    run = tmp_path / "judged"
    process = launcher.start(
        tmp_path,
        f'run_name="{run.name}"',
        *SIMULATED,
        APART,
        "num_steps=6",
        preset="tiny-judged",
    )
    wait_for(run / "steps" / "00001.json", process)
    judge_of(process).send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    metrics = metrics_of(run)
    assert [step["reward/judge_infra"] for step in metrics] == [0] * 6
    assert max(step["round/attempts"] for step in metrics) == 2
    assert metrics[0]["reward/judge_calls"] >= 1
    assert metrics[0]["ledger/judged_tokens"] == metrics[0]["reward/judge_calls"]
    assert 0 <= metrics[0]["reward/judge_agreement"] <= 1
    rows = [
        row
        for path in (run / "responses").glob("step=*")
        for row in pq.read_table(path).to_pylist()
    ]
    assert {row["scorer"] for row in rows if row["outcome"] is not None} == {"judge"}
    assert all(row["reward"] in (0.0, 1.0) for row in rows if row["fate"] == "trained")
    spans = pq.read_table(run / "spans" / "step=00001").to_pylist()
    assert {(span["device"], span["kind"]) for span in spans if span["actor"] == "judge-0"} == {
        ("cpu:1", "reward")
    }
    assert (
        len(JudgementCache.read([Store.open(str(run)), Store.open(str(run / "evaluation"))]))
        >= metrics[0]["reward/judge_calls"]
    )
