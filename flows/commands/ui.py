"""rollflow ui: the pages of what was run, Prefect, MLflow and the reports (what `make ui` does)."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from artifacts.private_files import private_files
from artifacts.reports.mlflow_client import sqlite_uri
from flows.commands.local_stack import (
    PREFECT_PORT,
    check_port,
    check_running,
    prefect_server,
    server_process,
    stop_on_signals,
    wait_until_served,
)
from flows.commands.options import folder
from tasks.cluster.parent import bound_command
from tasks.cluster.ports import LOOPBACK, free_port

MLFLOW_PORT = 5000
REPORTS_PORT = 8788


def parser() -> ArgumentParser:
    made = ArgumentParser(prog="rollflow ui", description="Serve the pages of what was run.")
    made.add_argument(
        "--root",
        type=folder,
        default=Path("runs"),
        help="artifact root of the runs (default: %(default)s)",
    )
    made.add_argument(
        "--prefect-port",
        type=int,
        default=PREFECT_PORT,
        help="0 takes a free one (default: %(default)s)",
    )
    made.add_argument("--mlflow-port", type=int, default=MLFLOW_PORT, help="default: %(default)s")
    made.add_argument("--reports-port", type=int, default=REPORTS_PORT, help="default: %(default)s")
    return made


@private_files()
def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    stop_on_signals()
    try:
        serve_pages(
            options.root.resolve(),
            options.prefect_port or free_port(),
            options.mlflow_port,
            options.reports_port,
        )
    except KeyboardInterrupt:
        return 0
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def serve_pages(root: Path, prefect_port: int, mlflow_port: int, reports_port: int) -> None:
    """Serve Prefect, MLflow and the kept reports (each with its Dask page) until interrupted."""
    for port, what, option in (
        (mlflow_port, "MLflow", "--mlflow-port"),
        (reports_port, "the reports", "--reports-port"),
    ):
        check_port(port, what, f"end what listens there, or choose another with {option}")
    database = root / "mlflow.db"
    if not database.exists():
        raise ValueError(
            f"there must be a run to look at, {database} does not exist; run 'make demo' first"
        )
    mlflow = [
        "mlflow",
        "ui",
        "--backend-store-uri",
        sqlite_uri(database),
        "--host",
        LOOPBACK,
        "--port",
        str(mlflow_port),
    ]
    reports = ["http.server", str(reports_port), "--bind", LOOPBACK, "--directory", str(root)]
    with ExitStack() as stack:
        environment = stack.enter_context(prefect_server(root, prefect_port))
        for command, url, name in (
            (mlflow, f"http://{LOOPBACK}:{mlflow_port}/", "mlflow"),
            (reports, f"http://{LOOPBACK}:{reports_port}/", "reports"),
        ):
            log = root / f".{name}.log"
            process = stack.enter_context(server_process(bound_command(*command), environment, log))
            check = partial(check_running, process, name, log)
            wait_until_served(url, f"{name} (log: {log})", check)
        _print_pages(prefect_port, mlflow_port, reports_port, root)
        signal.pause()


def _print_pages(prefect_port: int, mlflow_port: int, reports_port: int, root: Path) -> None:
    print(f"Prefect   http://{LOOPBACK}:{prefect_port}")
    # without its kind of workflow the page opens on chat traces
    print(f"MLflow    http://{LOOPBACK}:{mlflow_port}/#/experiments?workflowType=machine_learning")
    for page in sorted(root.glob("*/report/*.html")):
        print(f"{page.stem:<9} http://{LOOPBACK}:{reports_port}/{page.relative_to(root)}")
    print("Ctrl-C ends the servers.", flush=True)


if __name__ == "__main__":
    sys.exit(main())
