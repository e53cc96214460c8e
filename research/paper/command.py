"""The papers' experiments on simulated machines, ours beside published.

    python -m research.paper                           # all that papers published
    python -m research.paper --only beyond             # what goes beyond them
    python -m research.paper --only fig11/8k --only table2 --json figures.json
    python -m research.paper --list

    experiments ─▶ cases, each played once ─▶ figures ─▶ Parquet, PNG ─▶ table, JSON

What is calibrated on what: docs/experiments.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from artifacts.store import Store
from research.paper.beyond import beyond
from research.paper.compared import (
    errors_in_words,
    keep,
    lines_of,
    markdown_of,
    table_of,
    with_figures,
)
from research.paper.experiment import QUICK, Experiment, Scale, play_cases
from research.paper.flash import roll_flash
from research.paper.h200 import h200
from research.paper.polyrl import polyrl
from research.paper.rollout_rounds import curves, figure_6, figure_10, figure_11
from research.paper.whole_steps import (
    figure_4,
    figure_13,
    figure_14,
    over_rlhfuse,
    table_1,
    table_2,
    table_3,
    table_4,
)

TABLE_WIDTH = 132
# in the order of the tables
EXPERIMENTS: Mapping[str, Callable[[Scale], Experiment]] = {
    "h200": h200,
    "table1": table_1,
    "table2": table_2,
    "rlhfuse": over_rlhfuse,
    "fig4": figure_4,
    "fig6": figure_6,
    "fig10": figure_10,
    "fig11": figure_11,
    "curves": curves,
    "fig13": figure_13,
    "table3": table_3,
    "table4": table_4,
    "fig14": figure_14,
    "flash": roll_flash,
    "polyrl": polyrl,
    "beyond": beyond,
}
NOT_PUBLISHED = ("beyond",)


def main(words: Sequence[str] | None = None) -> int:
    """Play the chosen experiments. Returns the exit status: 0, 2 for wrong options, 130 when
    interrupted."""
    options = _parser().parse_args(words)
    scale = Scale(periods=QUICK if options.quick else options.periods, seed=options.seed)
    try:
        experiments = chosen(options.only or by_default(everything=options.list), scale)
        if options.list:
            _list(experiments)
            return 0
        cases = [case for experiment in experiments for case in experiment.cases]
        played = play_cases(cases, options.processes, _report)
        of_each = {experiment.name: experiment.figures(played) for experiment in experiments}
        for experiment in experiments:
            store = Store.open(options.artifact_root)
            keep(experiment, of_each[experiment.name], played, store)
    except KeyboardInterrupt:
        return 130
    except (ValueError, ConnectionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figures = {name: value for own in of_each.values() for name, value in own.items()}
    Console(width=TABLE_WIDTH).print(table_of(lines_of(figures)))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    if options.markdown is not None:
        tables = [markdown_of(experiment, of_each[experiment.name]) for experiment in experiments]
        told = "\n".join([f"{errors_in_words(figures)}\n", *tables])
        page = options.markdown.read_text() if options.markdown.exists() else ""
        options.markdown.write_text(with_figures(page, told))
    return 0


def by_default(*, everything: bool = False) -> list[str]:
    """The names of the experiments that papers published, or of everything."""
    return [name for name in EXPERIMENTS if everything or name not in NOT_PUBLISHED]


def chosen(only: Sequence[str], scale: Scale) -> list[Experiment]:
    """Experiments with the chosen parts. Raises ValueError for a name that chooses nothing."""
    every = [make(scale) for make in EXPERIMENTS.values()]
    for name in only:
        if not any(experiment.only([name]).parts for experiment in every):
            raise ValueError(
                f"--only must name an experiment or a figure of one, got {name!r}; --list has them"
            )
    narrowed = (experiment.only(only) for experiment in every)
    return [experiment for experiment in narrowed if experiment.parts]


def _list(experiments: Sequence[Experiment]) -> None:
    table = Table("experiment", "parts", "about")
    for experiment in experiments:
        parts = " ".join(part.name for part in experiment.parts)
        table.add_row(experiment.name, parts, experiment.about)
    Console(width=TABLE_WIDTH).print(table)


def _report(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m research.paper", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="an experiment, a part of one (fig11/8k) or a figure; repeat it for more"
        " (default: all experiments of papers)",
    )
    parser.add_argument("--list", action="store_true", help="list experiments, and play nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write our figures")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="page to write the tables to, between its marks if it has them",
    )
    parser.add_argument(
        "--periods",
        type=int,
        default=Scale().periods,
        help="periods of short and long rounds that a run has (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="one period")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="that play at the same time (default: one for each core)",
    )
    parser.add_argument(
        "--artifact-root",
        default="runs",
        metavar="DIR",
        help="folder or URL below which paper/ gets Parquet and pictures (default: %(default)s)",
    )
    return parser
