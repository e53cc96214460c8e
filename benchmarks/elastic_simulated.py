"""What spot workers bring a trainer, in tokens a second and tokens a dollar, on simulated engines
and learners, beside the published figures of RLBoost (paper) and FluidRL (its artifact).

    python -m benchmarks.elastic_simulated scaling     # 0 to 4 workers, beside the artifact
    python -m benchmarks.elastic_simulated segments    # workers that come and go, beside the paper
    python -m benchmarks.elastic_simulated ablations   # without seeding, without memory ...
    python -m benchmarks.elastic_simulated killed      # tokens that migrate, or a new beginning
    python -m benchmarks.elastic_simulated beyond      # tail batching and stream trainer on top
    python -m benchmarks.elastic_simulated holding     # how many workers to hold at which price
    python -m benchmarks.elastic_simulated hired       # segments, with as many as pay best
    python -m benchmarks.elastic_simulated trace --trace spot.csv --hours 2

`elastic_shapes` has what the hardware takes, `elastic_run` how a run is played. Nothing is fitted
to the published figures; all is deterministic by --seed. Of several tables in one command each run
is played once. --lengths rollpacker has responses as long as RollPacker's. --memory keeps the
windows that runs find in a folder, for the next run to begin with.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from artifacts.store import Store
from benchmarks.elastic_beyond import beyond, hired, holding
from benchmarks.elastic_options import Options, Rows
from benchmarks.elastic_tables import ablations, followed, killed, scaling, segments
from flows.experiments.spot.elastic_shapes import LENGTH_LAWS, SHAPES

TABLES: Mapping[str, Callable[[Options], Rows]] = {
    "scaling": scaling,
    "segments": segments,
    "ablations": ablations,
    "killed": killed,
    "beyond": beyond,
    "holding": holding,
    "hired": hired,
    "trace": followed,
}
WIDTH = 160  # characters


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("tables", nargs="+", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    made.add_argument("--shape", choices=SHAPES, default="8b", help="(default: %(default)s)")
    made.add_argument(
        "--lengths", choices=LENGTH_LAWS, default="rlboost", help="(default: %(default)s)"
    )
    made.add_argument(
        "--steps", type=int, default=4, help="that count, after the windows have settled"
    )
    made.add_argument("--hours", type=float, default=2.0, help="of a trace (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    made.add_argument("--trace", type=Path, help="CSV with the columns time_s and change")
    made.add_argument("--memory", help="folder or URL in which windows are kept between runs")
    return made


def main() -> None:
    reader = parser()
    given = reader.parse_args()
    if given.steps < 1 or given.hours <= 0:
        reader.error(f"--steps must be >= 1 and --hours above 0, got {given}")
    if "trace" in given.tables and given.trace is None:
        reader.error("the table trace needs --trace FILE.csv")
    options = Options(
        shape_name=given.shape,
        lengths=given.lengths,
        steps=given.steps,
        seed=given.seed,
        hours=given.hours,
        trace=given.trace,
        memory=Store.open(given.memory) if given.memory else None,
    )
    for name in given.tables:
        tell(name, options)


def tell(name: str, options: Options) -> None:
    """Print a table; its rows as they come, too, since a run takes minutes."""
    rows = TABLES[name](options)
    words = f"{name}, {options.shape_name}, lengths of {options.lengths}, seed {options.seed}"
    table, so_far = Table(*next(rows), title=words), Console(stderr=True, width=WIDTH)
    for row in rows:
        so_far.print(*row)
        table.add_row(*row)
    Console(width=WIDTH).print(table)


if __name__ == "__main__":
    main()
