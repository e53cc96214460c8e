"""Runs through the real commands: a Prefect server for the session, the tiny model built once, every run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.local_stack import free_port, prefect_server

ROOT = Path(__file__).parents[2]
SMALL = (  # the tiny preset, small enough that a run is mostly its start
    "num_steps=2",
    "batch.prompts_per_step=4",
    "batch.responses_per_prompt=4",
    "sampling.max_response_tokens=48",
    "evaluation.num_prompts=4",
    "evaluation.responses_per_prompt=1",
    "cluster.dashboard_port=0",
    "keep.checkpoint_every_steps=1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that has ended."""

    code: int  # exit status
    out: str  # stdout
    err: str  # stderr


class Launcher:
    """Starts `python -m flows.start` as a user would."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def start(self, root: Path, *assignments: str, preset: str = "tiny-sync", resume: str = "") -> subprocess.Popen[str]:
        """A run in the background, its artifacts under root."""
        command = [sys.executable, "-m", "flows.start", "--preset", preset, "--set", f"keep.artifact_root={root}"]
        for assignment in (*SMALL, *assignments):
            command += ["--set", assignment]
        command += ["--resume", resume] if resume else []
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, root: Path, *assignments: str, preset: str = "tiny-sync", resume: str = "") -> Finished:
        """A run from beginning to end."""
        process = self.start(root, *assignments, preset=preset, resume=resume)
        out, err = process.communicate(timeout=280)
        return Finished(code=process.returncode, out=out, err=err)


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    with prefect_server(tmp_path_factory.mktemp("prefect"), free_port()) as environment:
        yield Launcher(environment)


def wait_for(found: Path, process: subprocess.Popen[str], deadline_s: float = 200.0) -> None:
    """Until a file is there; fails with the run's own words when it ends before."""
    ends = time.monotonic() + deadline_s
    while not found.exists():
        if process.poll() is not None:
            raise AssertionError(
                f"the run ended with {process.returncode} before {found}: {process.stderr.read() if process.stderr else ''}"
            )
        if time.monotonic() > ends:
            raise AssertionError(f"{found} did not appear within {deadline_s:.0f} s")
        time.sleep(0.05)
