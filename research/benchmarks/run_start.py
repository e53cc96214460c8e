"""How long a run takes until its first answers, and what of the machine: workers forked from the
flow's own process, and from a server that is started from nothing when the run is open, in turns.

    python -m research.benchmarks.run_start --preset tiny-sync --pairs 3

Runs of two small steps with a Prefect server that answers already. Core seconds are those of all
that runs on the machine. Leaves out the first start of all, which compiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flows.commands.local_stack import prefect_server
from tasks.cluster.ports import free_port

SMALL = (
    "num_steps=2",
    "batch.prompts_per_step=4",
    "batch.responses_per_prompt=4",
    "sampling.max_response_tokens=48",
    "evaluation.num_prompts=4",
    "evaluation.responses_per_prompt=1",
    "cluster.dashboard_port=0",
)
FORKED = ("-m", "flows.commands.train")
FROM_NOTHING = (  # the command without what it does to be forked from
    "-c",
    "import sys; from flows.commands import train; train.begin_as_workers_do = lambda: None; import"
    " flows.train; flows.train.prepare_workers = lambda config: None; sys.exit(train.main())",
)
WAYS: Mapping[str, Sequence[str]] = {"forked": FORKED, "from nothing": FROM_NOTHING}
FIRST_ANSWERS = "held-out reward after step 0"


def main() -> None:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with prefect_server(root / "prefect", free_port()) as environment:
            words = _words(options, root)
            _start(FORKED, words, environment)  # makes the model
            measured: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
            for pair in range(options.pairs):
                for way in (list(WAYS), list(WAYS)[::-1])[pair % 2]:
                    measured[way].append(_start(WAYS[way], words, environment))
                    told = " ".join(f"{seconds:.1f}" for seconds in measured[way][-1])
                    print(f"pair={pair} {way}: {told}", flush=True)
    print("medians, s: run opened, first answers, end, core seconds of the machine")
    for way, rows in measured.items():
        medians = " ".join(f"{statistics.median(row):.1f}" for row in zip(*rows, strict=True))
        print(f"{way}: {medians}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny-sync")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--pairs", type=int, default=3)
    return parser


def _words(options: argparse.Namespace, root: Path) -> list[str]:
    words = ["--preset", options.preset, "--set", f"keep.artifact_root={root}"]
    for assignment in (*SMALL, *options.set):
        words += ["--set", assignment]
    return words


def _start(
    way: Sequence[str], words: Sequence[str], environment: Mapping[str, str]
) -> tuple[float, ...]:
    """Seconds until the run is open, its first answers, its end; core seconds meanwhile."""
    began, busy = time.monotonic(), _busy()
    name = f'run_name="start-{time.time_ns()}"'
    process = subprocess.Popen(
        [sys.executable, *way, *words, "--set", name],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    reached: dict[str, float] = {}
    for line in process.stdout:
        for moment in ("run:", FIRST_ANSWERS):
            if line.startswith(moment):
                reached[moment] = time.monotonic() - began
    if process.wait():
        raise RuntimeError(f"the run must end well, it ended with {process.returncode}")
    ended = time.monotonic() - began
    return reached["run:"], reached[FIRST_ANSWERS], ended, _busy() - busy


def _busy() -> float:
    """Core seconds of this machine that were spent on something."""
    user, nice, system, _idle, _wait, *others = map(int, _first_line().split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def _first_line() -> str:
    with open("/proc/stat") as file:
        return file.readline()


if __name__ == "__main__":
    main()
