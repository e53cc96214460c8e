"""Runs that are stopped at whatever moment, and runs whose command or flow is killed: what is
recorded, what is left of their processes, and that they are gone on with."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from mlflow import MlflowClient

from artifacts.commit import read_manifest
from artifacts.status import read_status
from artifacts.store import Store
from tests.flows.conftest import (
    COMES_WITHIN_S,
    ENDS_WITHIN_S,
    SIMULATED,
    Launcher,
    train_words,
    wait_for,
)
from tests.flows.prefect_tables import copy_tables

pytestmark = pytest.mark.flow

LONG = (*SIMULATED, "num_steps=200")
GONE_WITHIN_S = 60.0
MOMENTS = ("manifest.json", "status.json", "log/engine-0.log", "plans/00001.json")
COMMITTED = "steps/00001.json"
# left by a test whose nannies were in this process; with it Dask overwrites command lines
NAMED_BY_DASK = "__DASK_PARENT_PID"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def left(processes: list[psutil.Process]) -> list[str]:
    """What is still there of these after a while."""
    _, alive = psutil.wait_procs(processes, GONE_WITHIN_S)
    return [" ".join(process.cmdline()) for process in alive]


def interrupt(processes: list[psutil.Process], group: int) -> None:
    """Send SIGINT to those of a group."""
    for process in processes:
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group:
                os.kill(process.pid, signal.SIGINT)


def prefect_state(launcher: Launcher, run: Path) -> str:
    """What Prefect says of the run's flow."""
    (flow_run,) = read_manifest(Store.open(str(run))).prefect_flow_run_ids
    url = f"{launcher.environment['PREFECT_API_URL']}/flow_runs/{flow_run}"
    return str(httpx.get(url, timeout=30).json()["state"]["type"])


@pytest.mark.parametrize("draw", range(9))
def test_a_run_that_is_stopped_at_any_moment_is_interrupted(
    launcher: Launcher, tmp_path: Path, draw: int
) -> None:
    """Never failed: not in its own record, in MLflow's or in Prefect's."""
    drawn = random.Random(draw)
    moment = (*MOMENTS, *[COMMITTED] * 5)[draw]
    run = tmp_path / "run"
    process = launcher.start(tmp_path, *LONG, f'run_name="{run.name}"')
    wait_for(run / moment, process)
    time.sleep(drawn.uniform(0.0, 1.5))
    started = psutil.Process(process.pid).children(recursive=True)
    number = SIGNALS[draw % len(SIGNALS)]
    process.send_signal(number)
    if number == signal.SIGINT:  # a terminal sends it to whatever is in the group
        interrupt(started, os.getpgid(process.pid))
    told_s = time.monotonic()
    while "stopping, " not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    assert "Ctrl-C again ends at once" in line
    assert time.monotonic() - told_s < GONE_WITHIN_S
    assert process.wait(ENDS_WITHIN_S) == 130
    assert left(started) == []
    store = Store.open(str(run))
    status = read_status(store)
    assert status is None or (status.state, status.why[:10]) == ("interrupted", "stopped by")
    tracked = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    assert tracked.get_run(read_manifest(store).mlflow_run_id).info.status == "KILLED"
    assert prefect_state(launcher, run) == "CRASHED"


def test_a_second_ctrl_c_ends_a_run_at_once(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.start(tmp_path, *LONG, 'run_name="run"')
    wait_for(tmp_path / "run" / COMMITTED, process)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    while "stopping, " not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(GONE_WITHIN_S) == 130
    assert left(started) == []
    status = read_status(Store.open(str(tmp_path / "run")))
    assert status is not None
    assert status.state == "interrupted"


def begun(directory: Path, *words: str) -> subprocess.Popen[str]:
    """`rollflow demo` in a directory, in which its runs lie."""
    command = [str(Path(sys.executable).with_name("rollflow")), "demo", "--root", str(directory)]
    return subprocess.Popen(
        [*command, "--prefect-port", "0", *words],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if name != NAMED_BY_DASK},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run with servers of its own, in a directory with modules of the user's."""
    for name in ("tasks", "flows", "artifacts", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the module of the user')\n")
    (tmp_path / "mine.py").write_text("def reward(*_):\n    return 0.5\n")
    mine = ("rewards.*.kind=custom", "rewards.*.path=mine:reward", 'run_name="run"')
    copy_tables(tmp_path)
    with begun(tmp_path, *train_words(tmp_path, *LONG, *mine)) as process:
        yield process
        process.kill()


def test_nothing_outlives_a_command_that_is_killed_and_the_run_goes_on(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    await_commit(demo, tmp_path)
    started = psutil.Process(demo.pid).children(recursive=True)
    assert len(started) > 5
    demo.kill()
    assert left(started) == []
    committed = len(list((tmp_path / "run/steps").glob("*.json")))
    with begun(tmp_path, "--resume", "run", "--set", f"num_steps={committed + 1}") as resumed:
        said, _ = resumed.communicate(timeout=ENDS_WITHIN_S)
    assert resumed.returncode == 0, said
    assert "the module of the user" not in said


def child(demo: subprocess.Popen[str], module: str) -> psutil.Process:
    """The process that the command itself has started for this module."""
    lines = {process: process.cmdline() for process in psutil.Process(demo.pid).children()}
    found = [process for process, words in lines.items() if module in words]
    assert found, f"no {module} among {lines}"
    return found[0]


def await_commit(demo: subprocess.Popen[str], root: Path) -> None:
    ends = time.monotonic() + COMES_WITHIN_S
    while not (root / "run" / COMMITTED).exists():
        assert demo.poll() is None, demo.stdout and demo.stdout.read()
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_command_says_that_its_flow_was_killed_and_leaves_nothing(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    await_commit(demo, tmp_path)
    started = psutil.Process(demo.pid).children(recursive=True)
    child(demo, "flows.commands.train").kill()
    said, _ = demo.communicate(timeout=COMES_WITHIN_S)
    assert demo.returncode == 2
    assert "error: the run is gone: its process was killed by SIGKILL" in said
    assert left(started) == []


def test_a_prefect_server_that_is_killed_under_a_run_is_started_again(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    await_commit(demo, tmp_path)
    child(demo, "flows.commands.prefect_server").kill()
    before = len(list((tmp_path / "run/steps").glob("*.json")))
    ends = time.monotonic() + COMES_WITHIN_S
    while len(list((tmp_path / "run/steps").glob("*.json"))) < before + 3:
        assert demo.poll() is None, demo.stdout and demo.stdout.read()
        assert time.monotonic() < ends
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=COMES_WITHIN_S)
    assert "the Prefect server was killed by SIGKILL: it is started again" in said
