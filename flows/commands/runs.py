"""rollflow runs: list the runs of an artifact root with state, steps and reward.

    manifest.json + status.json + report/figures.json + names in steps/ -> a line per run

Only a few small files of every run are read, so that any fsspec URL is listed in seconds."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from artifacts import layout
from artifacts.commit import read_manifest
from artifacts.reports.figures import progress_text, read_figures
from artifacts.status import State, read_status
from artifacts.store import Store
from flows.commands.options import command

logger = logging.getLogger(__name__)

WIDTH = 1000  # characters that a line may have: names are whole, however narrow the terminal is
NUM_READERS = 16  # runs read side by side: a remote store answers slowly, but many at a time
COLOURS: dict[State, str] = {
    "running": "cyan",
    "interrupted": "yellow",
    "finished": "green",
    "failed": "red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run in the list."""

    run_id: str  # its folder
    preset: str  # preset it was configured from
    state: State  # state of its process
    why: str  # reason of a failure or an interruption
    steps: int  # committed steps
    num_steps: int  # steps it was asked to make
    reward_before: float | None  # held-out reward of the first model
    reward_after: float | None  # held-out reward of the last evaluated weights
    gain_low: float | None  # interval of their paired difference
    gain_high: float | None
    reward_training: float | None  # mean training reward of the last steps
    step_s: float | None  # mean seconds of a step
    trained_tokens_per_s: float | None  # response tokens trained in a second of its steps
    dollars: float | None  # cost of its steps; None without prices
    created: str  # when it began, ISO 8601
    age_s: float  # seconds since then


def list_runs(root: Store, now: datetime) -> list[RunLine]:
    """All readable runs under the root, the latest last."""
    folders = [name for name in root.list("") if not name.startswith(".")]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        found = readers.map(lambda name: read_line(root.child(name), name, now), folders)
        lines = [line for line in found if line is not None]
    return sorted(lines, key=lambda line: (line.created, line.run_id))


def read_line(store: Store, run_id: str, now: datetime) -> RunLine | None:
    """Read one run; None if the folder holds no run that this version can read."""
    try:
        if not store.exists(layout.MANIFEST):
            return None
        manifest = read_manifest(store)
        num_commits = len(layout.steps_of(store.list(layout.STEPS)))
        figures = read_figures(store)
        columns = figures.columns if figures else {}
        state, why = state_of(store)
        return RunLine(
            run_id=run_id,
            preset=str(manifest.config.get("preset", "")),
            state=state,
            why=why,
            steps=num_commits,
            num_steps=int(manifest.config.get("num_steps", 0)),
            created=manifest.created,
            age_s=(now - datetime.fromisoformat(manifest.created)).total_seconds(),
            reward_before=columns.get("reward_before"),
            reward_after=columns.get("reward_after"),
            reward_training=columns.get("reward_training"),
            step_s=columns.get("step_s"),
            trained_tokens_per_s=columns.get("trained_tokens_per_s"),
            gain_low=figures.gain_low if figures else None,
            gain_high=figures.gain_high if figures else None,
            dollars=figures.dollars if figures else None,
        )
    # damaged, of another version, or another user's
    except (ValueError, TypeError, AttributeError, PermissionError) as error:
        logger.warning("run=%s left out reason=%s", run_id, error)
        return None


def state_of(store: Store) -> tuple[State, str]:
    """State and reason. Without a status file a run with a model counts as finished."""
    status = read_status(store)
    if status is not None:
        return status.state, status.why
    if store.exists(layout.MODEL):
        return "finished", ""
    return "interrupted", "it left no sign of how it ended"


def table_of(lines: Sequence[RunLine]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("run", "state", "steps", "held-out reward", "training", "s/step", "age"):
        is_number = title in ("steps", "training", "s/step", "age")
        table.add_column(title, justify="right" if is_number else "left", no_wrap=True)
    for line in lines:
        table.add_row(
            Text(line.run_id),
            Text(line.state, style=COLOURS[line.state]),
            progress_text(line.steps, line.num_steps),
            change_text(line),
            _number(line.reward_training, ".2f"),
            _number(line.step_s, ".1f"),
            age_text(line.age_s),
        )
    return table


def age_text(seconds: float) -> str:
    """Format an age in its largest unit: "3 d", "2 h", "5 min", "9 s"."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="rollflow runs",
        description="List the runs of an artifact root with state, steps and reward.",
    )
    made.add_argument(
        "root",
        nargs="?",
        default="runs",
        help="artifact root: a directory or any fsspec URL (default: runs)",
    )
    made.add_argument("--root", dest="named_root", metavar="ROOT", help="the same, as elsewhere")
    made.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    return made


def change_text(line: RunLine) -> str:
    """Held-out rewards before and after, with the interval of their difference as far as known."""
    if line.reward_before is None:
        return "-"
    after = "" if line.reward_after is None else f" -> {line.reward_after:.3f}"
    is_known = line.gain_low is not None and line.gain_high is not None
    interval = f" [{line.gain_low:+.3f}, {line.gain_high:+.3f}]" if after and is_known else ""
    return f"{line.reward_before:.3f}{after}{interval}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


@command(parser)
def main(options: argparse.Namespace) -> int:
    root = options.named_root or options.root
    lines = list_runs(Store.open(root), datetime.now(UTC))
    if options.json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
        return 0
    if not lines:
        print(f"no run under {root}; 'make demo' makes one")
        return 0
    console = Console(soft_wrap=True, width=WIDTH)
    console.print(table_of(lines), highlight=False)
    for line in lines:
        if line.state in ("failed", "interrupted") and line.why:
            reason = f"{line.run_id} {line.state}: {line.why}"
            console.print(reason, markup=False, highlight=False)
    return 0
