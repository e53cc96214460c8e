"""The papers' experiments on simulated machines, ours beside published.

    python -m research.paper                           # all of them
    python -m research.paper --only fig11/8k --only table2 --json figures.json
    python -m research.paper --list

    experiments ─▶ cases, each played once ─▶ figures ─▶ Parquet, PNG, MLflow ─▶ table, JSON

Nothing of a paper's is fitted. --prefect makes a flow run of each experiment, at the Prefect server
that this process is configured for; without it the same functions are called.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from research.paper.compared import lines_of, markdown_of, table_of
from research.paper.experiment import QUICK, Experiment, Scale
from research.paper.perform import OutputPlace, figures_of
from research.paper.playing import play_cases
from research.paper.registry import chosen

TABLE_WIDTH = 132


def main(words: Sequence[str] | None = None) -> int:
    """The exit status: 0, 2 for what was asked wrongly, 130 when it was interrupted."""
    options = _parser().parse_args(words)
    scale = Scale(periods=QUICK if options.quick else options.periods, seed=options.seed)
    try:
        experiments = chosen(options.only, scale)
        if options.list:
            _list(experiments)
            return 0
        figures = _perform(options, experiments, scale)
    except KeyboardInterrupt:
        return 130
    except (ValueError, ConnectionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    Console(width=TABLE_WIDTH).print(table_of(lines_of(figures)))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    if options.markdown is not None:
        options.markdown.write_text(_page(experiments, figures))
    return 0


def _perform(
    options: argparse.Namespace, experiments: Sequence[Experiment], scale: Scale
) -> dict[str, float]:
    place = OutputPlace(artifact_root=options.artifact_root, tracks=options.mlflow)
    if options.prefect:
        return asyncio.run(_as_flows(options, scale, place, experiments))
    cases = [case for experiment in experiments for case in experiment.cases]
    played = play_cases(cases, options.processes, _tell)
    figures: dict[str, float] = {}
    for experiment in experiments:
        figures |= figures_of(experiment, played, place, scale)
    return figures


async def _as_flows(
    options: argparse.Namespace, scale: Scale, place: OutputPlace, experiments: Sequence[Experiment]
) -> dict[str, float]:
    from research.paper.flow import PaperConfig, paper_experiments  # Prefect: seconds

    config = PaperConfig(
        names=tuple(part.name for experiment in experiments for part in experiment.parts),
        devices="simulated",
        periods=scale.periods,
        seed=scale.seed,
        num_processes=options.processes,
        artifact_root=place.artifact_root,
        mlflow=place.tracks,
    )
    return await paper_experiments(config)


def _page(experiments: Sequence[Experiment], figures: Mapping[str, float]) -> str:
    """A table for each experiment."""
    tables = []
    for experiment in experiments:
        prefix = f"{experiment.name}/"
        own = {name: value for name, value in figures.items() if name.startswith(prefix)}
        tables.append(markdown_of(experiment, own))
    return "\n".join(tables)


def _list(experiments: Sequence[Experiment]) -> None:
    table = Table("experiment", "parts", "about")
    for experiment in experiments:
        parts = " ".join(part.name for part in experiment.parts)
        table.add_row(experiment.name, parts, experiment.about)
    Console(width=TABLE_WIDTH).print(table)


def _tell(words: str) -> None:
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
        help="an experiment, a part of one (fig11/8k) or a figure; repeat it for more",
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and play nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write our figures")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="where to write the tables of a page"
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
    parser.add_argument(
        "--no-mlflow", dest="mlflow", action="store_false", help="log no runs in MLflow"
    )
    parser.add_argument("--prefect", action="store_true", help="as flow runs of Prefect")
    return parser
