"""The twins of the papers' jobs, from the command to the report: SmolLM2 on generated questions
with rules, a sandbox and a judge; and PolyRL's with workers that come by the step script's
schedule, on simulated engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tasks.cluster.ports import free_port
from tests.flows.conftest import (
    BRIEFLY,
    DRAWN,
    ENDS_WITHIN_S,
    HANDOVER,
    ROOT,
    SIMULATED,
    SMALL,
    Launcher,
)
from tests.flows.test_elastic_worker_runs import (
    SLOW,
    commits,
    figure,
    handed,
    members,
    trained_responses,
    wait_until,
)

pytestmark = [pytest.mark.flow, pytest.mark.engine]

P0 = R0 = 4  # of SMALL
STEPS = 24  # of some four seconds: time for the first worker to come, and for the second
MATHS = ("add", "letters")
SCORERS = {("code", "code"), ("story", "judge"), *((each, "math_answer") for each in MATHS)}


def judged_words(name: str, root: Path) -> list[str]:
    """What stands behind `rollflow train` for two steps of a twin."""
    kept = {"keep.artifact_root": root, "keep.weights_dir": HANDOVER, "run_name": name}
    assignments = [each for each in SMALL if each != BRIEFLY]
    assignments += [f"{field}={json.dumps(str(value))}" for field, value in kept.items()]
    words = ["--preset", name]
    for assignment in (*assignments, DRAWN):
        words += ["--set", assignment]
    return words


@pytest.mark.parametrize(
    "name", ["rollpacker-7b-small", "rollpacker-32b-small", "roll-rlvr-7b-small"]
)
def test_three_domains_are_trained_from_the_command_to_the_report(
    launcher: Launcher, tmp_path: Path, name: str
) -> None:
    process = launcher.origin.start(judged_words(name, tmp_path), tmp_path)
    try:
        _, err = process.communicate(timeout=ENDS_WITHIN_S)
    finally:
        process.kill()
    run = tmp_path / name
    assert process.returncode == 0, err
    kinds = {commit["kind"] for commit in commits(run)}
    assert kinds == ({"sync"} if name.startswith("roll-") else {"short", "drain"})
    for step in range(1, 3):
        assert len(trained_responses(run, step)) == P0 * R0
    files = f"read_parquet('{run}/responses/*/*.parquet')"
    scored = duckdb.sql(f"select distinct domain, scorer from {files} where reward is not null")
    found = set(scored.fetchall())
    assert {("code", "code"), ("story", "judge")} < found <= SCORERS
    if name == "rollpacker-7b-small":
        assert all(figure(run, "rollout/freed_learners")[:2]), "devices trained in mid-round"
    assert (run / "report/index.html").is_file()


def test_workers_of_the_step_script_take_part_in_polyrls_twin(
    launcher: Launcher, tmp_path: Path
) -> None:
    run, port = tmp_path / "polyrl", free_port()
    process = launcher.start(
        tmp_path,
        *(*SIMULATED, SLOW, DRAWN, f"num_steps={STEPS}", f'run_name="{run.name}"'),
        *("model.kind=tiny_llama", "task.kind=chain_sum", "task.min_terms=3"),
        *("rewards.*.kind=math_answer", f"cluster.scheduler_port={port}"),
        preset="polyrl-8b-small",
    )
    schedule = ["--schedule", "step", "--interval", "30", "--most", "2", "--name", "spot"]
    command = [
        sys.executable,
        "-m",
        "flows.commands.rollflow",
        "workers",
        f"tls://127.0.0.1:{port}",
    ]
    try:
        wait_until((run / "plans/00001.json").exists, "the first round", process)
        with (tmp_path / "workers.log").open("w") as log:
            workers = subprocess.Popen(
                [*command, *schedule, *handed(run)],
                cwd=ROOT,
                env=os.environ | launcher.environment,
                stderr=log,
            )
            try:
                _, err = process.communicate(timeout=ENDS_WITHIN_S)
            finally:
                workers.send_signal(signal.SIGTERM)
                workers.wait(60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    for step in range(1, STEPS + 1):
        assert len(trained_responses(run, step)) == P0 * R0
    assert (run / "report/members.json").exists(), (tmp_path / "workers.log").read_text()
    came = members(run)
    assert {name.rpartition(".")[0] for name in came} <= {"spot-0", "spot-1"}
    assert sum(worker["num_tokens"] for worker in came.values()) > 0
    spent: list[dict[str, Any]] = commits(run)  # Any: JSON
    assert any(commit["metrics"].get("cost/spot_worker_s") for commit in spent)
    assert (run / "report/index.html").is_file()
