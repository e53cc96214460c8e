"""A long run watched from outside: whether memory, lag or what runs in the engines grows with the
steps.

    python -m research.benchmarks.soak --preset tiny-async --steps 300 --plot soak.png

The whole flow runs, as `rollflow demo` runs it, in small steps and with a Prefect server of its
own; every few seconds the resident memory of each of its processes is read. A process is called by
the log that it writes into. Slopes are of a least-squares line over the steps after the first tenth
of the run. With `--engine simulated` engines answer and hold no model; all else is real.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]  # it has no stubs
from rich.console import Console
from rich.table import Table

from artifacts import layout
from artifacts.reports.canvas import legend_below, new_figure, png
from flows.commands.local_stack import prefect_server
from tasks.cluster.ports import free_port

SAMPLE_EVERY_S = 5.0
WARM_UP = 0.1  # share of the steps in which memory may still grow
MEGABYTE = 1 << 20
SMALL = (  # settings that make a step of the tiny preset as short as the flow allows
    "batch.prompts_per_step=4",
    "batch.responses_per_prompt=4",
    "sampling.max_response_tokens=48",
    "evaluation.num_prompts=4",
    "evaluation.responses_per_prompt=1",
    "cluster.dashboard_port=0",
)
ENGINES: Mapping[str, tuple[str, ...]] = {
    "preset": (),
    "simulated": (
        "engine.kind=simulated",
        "engine.responses=chain_sums",
        "engine.max_model_len=256",
        "engine.profile.step_s=0.02",
    ),
}
DRIFTS = ("lag/mean_versions", "lag/max_versions", "queue/carried_prompts", "time/step_s")
UNCLAIMED, LEFT = "engine/unclaimed_responses", "round/left_running"


@dataclass(slots=True)
class Readings:
    """Resident memory over the steps, by process."""

    of: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # (step, MB)

    def add(self, step: int, megabytes: Mapping[str, float]) -> None:
        for name, value in megabytes.items():
            self.of.setdefault(name, []).append((step, value))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Growth of the second per hundred of the first; 0 where there is no line to draw."""
    if len({place for place, _ in points}) < 2:
        return 0.0
    places, values = np.array(points, dtype=float).T
    return float(100 * np.polyfit(places, values, 1)[0])


def settled(points: Sequence[tuple[int, float]], num_steps: int) -> list[tuple[int, float]]:
    """Those after the warm-up."""
    return [(step, value) for step, value in points if step > WARM_UP * num_steps]


def resident(roots: Mapping[str, int]) -> dict[str, float]:
    """Resident megabytes of these processes and all below them; several of a name are added."""
    found: dict[str, float] = {}
    for root, pid in roots.items():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                name = root if each.pid == pid else name_of(each.pid, root)
                with suppress(psutil.NoSuchProcess):
                    found[name] = found.get(name, 0.0) + each.memory_info().rss / MEGABYTE
    return found


def name_of(pid: int, root: str) -> str:
    """The stem of the log that a process writes into; where it has none, whose child it is."""
    with suppress(OSError):
        output = Path(f"/proc/{pid}/fd/1").readlink()
        if output.suffix == ".log":
            return output.stem
    return f"{root}, children"


def committed(run: Path) -> list[dict[str, float]]:
    """The figures of every committed step."""
    commits = sorted((run / layout.STEPS).glob("[0-9]*.json"))
    return [json.loads(commit.read_bytes())["metrics"] for commit in commits]


def watched(root: Path, arguments: argparse.Namespace) -> tuple[int, Readings]:
    """Run it; the exit status, and what was read."""
    settings = (*SMALL, *ENGINES[arguments.engine], *arguments.set)
    given = [f"num_steps={arguments.steps}", f"keep.artifact_root={root}", 'run_name="soak"']
    command = [sys.executable, "-m", "flows.commands.train", "--preset", arguments.preset]
    for assignment in (*given, *settings):
        command += ["--set", assignment]
    readings = Readings()
    with (
        prefect_server(root / "prefect", free_port()) as environment,
        (root / "output.txt").open("wb") as output,
    ):
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=output, stderr=output
        )
        try:
            while process.poll() is None:
                num_steps = len([*(root / "soak" / layout.STEPS).glob("[0-9]*.json")])
                readings.add(num_steps, resident(processes(process.pid)))
                time.sleep(SAMPLE_EVERY_S)
        finally:
            process.terminate()
            process.wait()
    return process.returncode, readings


def processes(flow: int) -> dict[str, int]:
    """The flow and, beside it, this command's other children: the Prefect server."""
    others = [child.pid for child in psutil.Process().children() if child.pid != flow]
    return {"flow": flow} | {f"Prefect server {place}": pid for place, pid in enumerate(others)}


def memory_rows(readings: Readings, num_steps: int) -> Iterator[tuple[str, ...]]:
    for name, points in sorted(readings.of.items()):
        late = settled(points, num_steps)
        if len(late) > 1:
            first, last = late[0][1], late[-1][1]
            yield name, f"{first:.0f}", f"{last:.0f}", f"{slope(late):+.1f}"


def drift_rows(steps: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, ...]]:
    for name in DRIFTS:
        points = [(step, figures[name]) for step, figures in enumerate(steps, 1) if name in figures]
        late = settled(points, len(steps))
        if late:
            values = [value for _, value in late]
            mean, largest = sum(values) / len(values), max(values)
            yield name, f"{mean:.3f}", f"{largest:.3f}", f"{slope(late):+.3f}"


def picture(readings: Readings, num_steps: int) -> bytes:
    """Resident memory over the steps."""
    figure, axes = new_figure(8.0, 4.0, f"Resident memory over {num_steps} steps")
    lines: list[Any] = []  # Any: matplotlib's artists
    for name, points in sorted(readings.of.items()):
        steps, megabytes = zip(*points, strict=True)
        lines += axes.plot(steps, megabytes, label=name, linewidth=1.4)
    axes.set(xlabel="committed steps", ylabel="MB", ylim=(0, None))
    legend_below(figure, lines)
    return png(figure)


def tell(readings: Readings, steps: Sequence[Mapping[str, float]]) -> None:
    console = Console(width=110)
    memory = Table("process", "MB after a tenth", "MB at the end", "MB in 100 steps")
    for row in memory_rows(readings, len(steps)):
        memory.add_row(*row)
    drifts = Table("figure", "mean", "largest", "growth in 100 steps")
    for row in drift_rows(steps):
        drifts.add_row(*row)
    console.print(memory, drifts)
    console.print(
        f"{len(steps)} steps;"
        f" {sum(figures.get(UNCLAIMED, 0.0) for figures in steps):.0f} responses ran on that nobody"
        f" was to have; {steps[-1].get(LEFT, 0.0):.0f} ran on after the last round"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny-async")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--engine", choices=[*ENGINES], default="simulated")
    parser.add_argument("--set", action="append", default=[], help="a setting, as of train")
    parser.add_argument("--plot", type=Path, help="where to draw the memory")
    parser.add_argument("--out", type=Path, help="keep the run here; else it is thrown away")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollflow-soak-") as scratch:
        root = (arguments.out or Path(scratch)).resolve()
        root.mkdir(parents=True, exist_ok=True)
        code, readings = watched(root, arguments)
        steps = committed(root / "soak")
        if steps:
            tell(readings, steps)
        if arguments.plot and steps:
            arguments.plot.write_bytes(picture(readings, len(steps)))
        if code:
            print((root / "output.txt").read_text()[-3000:])
            raise SystemExit(code)


if __name__ == "__main__":
    main()
