"""Runs whose weights reach the real engine without a file."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from artifacts.weights import digest, read_weights
from tests.flows.asynchronous_records import commits
from tests.flows.conftest import ENDS_WITHIN_S, Launcher, wait_for, worker_of

pytestmark = pytest.mark.flow


@pytest.mark.parametrize(("transport", "victim"), [("ipc", "learner-0"), ("broadcast", "engine-0")])
def test_a_run_without_weight_files_gets_over_a_death_and_exports_its_model(
    launcher: Launcher, tmp_path: Path, transport: str, victim: str
) -> None:
    """The worker's next process maps the learner's memory, or joins the group, anew."""
    run = tmp_path / transport
    settings = ("num_steps=3", f"learner.transport={transport}", f'run_name="{run.name}"')
    process = launcher.start(tmp_path, *settings, preset="tiny-sync")
    wait_for(run / "steps" / "00001.json", process)
    worker_of(process, victim).send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    done = commits(run)
    assert [commit["weights"]["version"] for commit in done] == [1, 2, 3]
    exported = digest(read_weights(run / "model" / "model.safetensors"))
    assert exported == done[-1]["weights"]["digest"]
