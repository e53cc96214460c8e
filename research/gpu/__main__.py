"""What a GPU shows and a machine without one cannot: tests, figures and whole runs, in one command.

    python -m research.gpu --minutes 8 --json figures.json          # one GPU or more, offline
    python -m research.gpu --minutes 5 --device cpu                 # the same with tiny sizes
    python -m research.gpu --list
    python -m research.gpu --only learner schedules --minutes 10
    python -m research.gpu --skip tests

The parts (`parts`) come in the order of their value; each is a process of its own with a limit of
its own, so that none takes another's time and a crash costs one part: time that a part leaves goes
to those after it. The table at the end names every part whatever failed, after an interruption,
too; the JSON file is written anew after each. The exit status is 0 if every part ran to its end and
every figure with a bound keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from research.gpu.figures import Figure, figures_in, skipped_in
from research.gpu.parts import PARTS, Part
from tasks.cluster.parent import kill_descendants

WIDTH = 120  # characters of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """How a part ended, and what it printed until then."""

    part: str
    ended: str  # "done", or why it has not come to its end
    seconds: float
    figures: tuple[Figure, ...]
    not_measured: tuple[str, ...] = ()  # names of missing figures, each with why


def play(part: Part, device: str, out: Path, limit_s: float) -> PartOutcome:
    """Run one part in a process of its own, and kill whatever is left of it at the limit."""
    log = out / f"{part.name}.log"
    scratch = out / part.name
    scratch.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", part.module, "--device", device, "--out", str(scratch)]
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *part.arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        )
        try:
            code = process.wait(limit_s)
            ended = "done" if code == 0 else f"exit status {code}"
        except subprocess.TimeoutExpired:
            ended = f"cut off after {limit_s:.0f} s"
        finally:
            kill_descendants(process.pid)
            process.kill()
            process.wait()
    lines = log.read_text(errors="replace").splitlines()
    if ended != "done":
        print("\n".join(lines[-25:]), flush=True)
    return PartOutcome(
        part=part.name,
        ended=ended,
        seconds=time.monotonic() - began,
        figures=tuple(figures_in(lines)),
        not_measured=tuple(skipped_in(lines)),
    )


def machine(device: str) -> str:
    """One line on the machine that the figures are of."""
    name = f"{os.cpu_count()} cores, {platform.machine()}"
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        name = f"{torch.cuda.device_count()} x {card.name}, {memory}, {name}"
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def written(path: Path, about: str, outcomes: Sequence[PartOutcome]) -> None:
    """Write all outcomes so far."""
    content = {"machine": about, "parts": [asdict(outcome) for outcome in outcomes]}
    path.write_text(json.dumps(content, indent=1))


def table(outcomes: Sequence[PartOutcome], skipped: Sequence[Part]) -> Table:
    """A row for each figure, and one for each part that has none."""
    rows = Table("part", "figure", "value", "should be", "holds", width=WIDTH)
    for outcome in outcomes:
        name = f"{outcome.part} ({outcome.seconds:.0f} s)"
        for figure in outcome.figures:
            holds = {True: "yes", False: "NO", None: ""}[figure.holds]
            value = f"{figure.value:.4g} {figure.unit}".strip()
            rows.add_row(name, figure.name, value, figure.bound, holds)
            name = ""
        for missing in outcome.not_measured:
            rows.add_row(name, missing, "not measured", "", "")
            name = ""
        if outcome.ended != "done":
            rows.add_row(name, outcome.ended, "", "", "NO")
    for part in skipped:
        rows.add_row(part.name, "no time was left", "not measured", "", "")
    return rows


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m research.gpu", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all parts (8)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu takes tiny sizes; the default is cuda where there is a GPU",
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these parts")
    parser.add_argument("--skip", nargs="+", choices=names, default=[], help="all but these parts")
    parser.add_argument("--list", action="store_true", help="say what the parts are")
    parser.add_argument("--out", type=Path, help="keep logs and runs here")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    options = parse(words)
    console = Console(width=WIDTH)
    if options.list:
        for part in PARTS:
            console.print(f"{part.name:12} {part.about}", highlight=False)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        console.print("error: no GPU is found by torch; rollflow doctor says why, or --device cpu")
        return 2
    chosen = [part for part in PARTS if part.name in {*options.only} - {*options.skip}]
    about, outcomes = machine(options.device), list[PartOutcome]()
    ends = time.monotonic() + 60 * options.minutes
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as an interruption: with the table
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        out = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out.mkdir(parents=True, exist_ok=True)
        while chosen and (left_s := ends - time.monotonic()) > 5.0:
            part = chosen[0]
            limit_s = left_s * part.weight / sum(each.weight for each in chosen)
            console.print(f"{part.name}: {part.about} (at most {limit_s:.0f} s)", highlight=False)
            outcomes.append(play(part, options.device, out.resolve(), limit_s))
            del chosen[0]
            if options.json:
                written(options.json, about, outcomes)
    console.print(about, table(outcomes, chosen))
    failed = any(outcome.ended != "done" for outcome in outcomes)
    figures = [figure for outcome in outcomes for figure in outcome.figures]
    return int(failed or bool(chosen) or any(figure.holds is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
