"""`rollflow serve`: its deployments, the end of its worker, and how it invites a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs
import pytest

from flows.commands import serve
from flows.commands.local_stack import StartingServer
from flows.commands.serve import deployments, invitation, main, prefect, stop_worker

ADDRESS = {"PREFECT_API_URL": "http://127.0.0.1:4321/api"}
SERVER = StartingServer(
    url="http://127.0.0.1:4321", environment=ADDRESS, wait=lambda is_needless: None
)
# a worker as Prefect's: it waits for a run, which needs a moment to stop and then says so
RUN = """
import signal, sys
signal.signal(15, lambda *_: sys.exit(0))
print(1, flush=True)
signal.pause()
"""
WORKER = f"""
import signal, subprocess, sys
signal.signal(15, signal.SIG_IGN)
run = subprocess.Popen([sys.executable, "-c", {RUN!r}], stdout=subprocess.PIPE)
run.stdout.readline()
print(run.pid, flush=True)
print(run.wait(), flush=True)
signal.pause()
"""


def test_all_deployments_that_train_are_offered_or_those_named() -> None:
    everything = deployments([])
    assert {"tiny", "laptop", "one-gpu"} < set(everything)
    assert "elastic-worker" not in everything
    assert deployments(["elastic-worker", "tiny"]) == ["elastic-worker", "tiny"]


def test_an_unknown_deployment_is_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tinny"]) == 2
    assert "got 'tinny'; did you mean 'tiny'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_line_that_starts_a_run_names_the_server_and_an_offered_deployment() -> None:
    assert "PREFECT_API_URL=http://127.0.0.1:4321/api" in invitation(SERVER, ["laptop", "tiny"])
    assert "deployment run train/tiny --watch" in invitation(SERVER, ["laptop", "tiny"])
    assert "deployment run train/laptop --watch" in invitation(SERVER, ["laptop"])


def test_a_worker_ends_after_its_runs_have_stopped() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, start_new_session=True
    )
    assert worker.stdout is not None
    run = int(worker.stdout.readline())
    stop_worker(worker)
    assert worker.stdout.read() == b"0\n"  # the run was asked to stop, and was not killed
    assert worker.returncode == -9
    assert not psutil.pid_exists(run)
    worker.stdout.close()


def test_a_command_of_prefects_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "A pool named 'rollflow' already exists."
    program = f"import sys; print({said!r} if 'pool' in sys.argv else 'no such thing'); sys.exit(1)"
    monkeypatch.setattr(serve, "PREFECT", [sys.executable, "-c", program])
    prefect(["pool"], {})
    with pytest.raises(
        RuntimeError, match="'prefect deploy --name' must succeed, it says: no such"
    ):
        prefect(["deploy", "--name", "tiny"], {})
