"""Whole runs of the GPU command: starts one as a user does, and reads what it committed."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from artifacts import layout
from research.gpu.figures import Figure
from tasks.cluster.parent import kill_descendants


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that came to its end."""

    folder: Path
    metrics: tuple[dict[str, float], ...]  # of each committed step, in order
    digests: tuple[str, ...]  # of the weights of each step
    first_token_s: float  # seconds from the command to the first token that was trained


def device_settings(device: str, gpu_share: float) -> tuple[str, ...]:
    """Settings that put rollout and learner on all GPUs there are, or on two cores."""
    if device == "cpu":
        return ("cluster.device_kind=cpu",)
    last = torch.cuda.device_count() - 1
    both = "0" if last == 0 else f"0-{last}"
    return (
        "cluster.device_kind=cuda",
        f"cluster.num_devices={last + 1}",
        f'cluster.roles="rollout: {both}, learner: {both}"',
        f"engine.gpu_memory_utilization={gpu_share}",
    )


def demo(root: Path, name: str, *settings: str, preset: str = "") -> list[str]:
    """The command of a run."""
    command = [sys.executable, "-m", "flows.commands.rollflow", "demo", "--root", str(root)]
    command += ["--prefect-port", "0", *(("--preset", preset) if preset else ())]
    for setting in ("cluster.dashboard_port=0", f'run_name="{name}"', *settings):
        command += ["--set", setting]
    return command


def play(root: Path, name: str, *settings: str, preset: str = "") -> FinishedRun:
    """Run to the end. Raises RuntimeError with the run's last words if it fails."""
    began_s = time.time()
    finish(demo(root, name, *settings, preset=preset))
    return read(root / name, began_s)


def finish(command: Sequence[str]) -> None:
    """Run a command to its end. Raises RuntimeError with its last words if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout[-4000:], flush=True)
    if done.returncode:
        raise RuntimeError(f"the run ended with status {done.returncode}: {done.stdout[-500:]}")


def play_until(command: Sequence[str], committed: Path, deadline_s: float = 300.0) -> None:
    """Run a command until this file is there, then kill it and all its processes at once."""
    ends = time.monotonic() + deadline_s
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not committed.exists():
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"the run was to be killed once {committed} was there")
            time.sleep(0.02)
    finally:
        kill_descendants(process.pid)
        process.kill()
        process.wait()


def orchestration(run: FinishedRun, device: str, name: str = "") -> Figure:
    """Seconds of a step in which neither engines nor learner work, of this run."""
    return Figure(
        name=f"{name}orchestration of a step",
        value=statistics.median(step["time/orchestration_s"] for step in run.metrics),
        unit="s",
        at_most=0.3 if device == "cuda" else None,
    )


def read(folder: Path, began_s: float) -> FinishedRun:
    """What a run has committed."""
    commits: list[dict[str, Any]] = [  # Any: JSON values
        json.loads(path.read_bytes())
        for path in sorted((folder / layout.STEPS).glob("[0-9]*.json"))
    ]
    first_s = float("nan")
    with suppress(FileNotFoundError, ValueError):
        import pyarrow.dataset as ds

        tokens = ds.dataset(folder / "responses", format="parquet").to_table()
        first_s = min(filter(None, tokens["first_token_s"].to_pylist())) - began_s
    return FinishedRun(
        folder=folder,
        metrics=tuple(commit["metrics"] for commit in commits),
        digests=tuple(commit["weights"]["digest"] for commit in commits),
        first_token_s=first_s,
    )
