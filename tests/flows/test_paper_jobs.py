"""The twins of RollPacker's and ROLL's jobs, from the command to the report: SmolLM2 on generated
questions with rules, a sandbox and a judge."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from tests.flows.conftest import (
    BRIEFLY,
    DRAWN,
    ENDS_WITHIN_S,
    HANDOVER,
    SMALL,
    Launcher,
)
from tests.flows.test_elastic_worker_runs import (
    commits,
    figure,
    trained,
)

pytestmark = [pytest.mark.flow, pytest.mark.engine, pytest.mark.timeout(900)]

P0 = R0 = 4  # of SMALL
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
        assert len(trained(run, step)) == P0 * R0
    files = f"read_parquet('{run}/responses/*/*.parquet')"
    scored = duckdb.sql(f"select distinct domain, scorer from {files} where reward is not null")
    found = set(scored.fetchall())
    assert {("code", "code"), ("story", "judge")} < found <= SCORERS
    if name == "rollpacker-7b-small":
        assert all(figure(run, "rollout/freed_learners")[:2]), "devices trained in mid-round"
    assert (run / "report/index.html").is_file()
