"""rollflow ui: serve the pages of Prefect, MLflow and the reports, as `make ui` does."""

from __future__ import annotations

import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from artifacts.private_files import private_files
from artifacts.reports.mlflow_client import sqlite_uri
from flows.commands.local_stack import (
    SERVERS,
    add_ports,
    check_running,
    prefect_server,
    server_process,
    stop_on_signals,
    wait_until_served,
    wish_of,
)
from flows.commands.options import command, folder
from tasks.cluster.parent import bound_command
from tasks.cluster.ports import LOOPBACK, held_port


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow ui", description="Serve the pages of Prefect, MLflow and the reports."
    )
    made.add_argument(
        "--root",
        type=folder,
        default=Path("runs"),
        help="artifact root of the runs (default: %(default)s)",
    )
    add_ports(made, SERVERS)
    return made


@command(parser, RuntimeError)
@private_files()
def main(options: Namespace) -> int:
    stop_on_signals()
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        ports = {}
        for name in SERVERS:
            wish = wish_of(name, getattr(options, f"{name}_port"))
            ports[name] = stack.enter_context(held_port(wish, print))
        serve_pages(options.root.resolve(), ports)
    return 0


def serve_pages(root: Path, ports: Mapping[str, int]) -> None:
    """Serve Prefect, MLflow and the reports until interrupted. ports: server -> port."""
    database = root / "mlflow.db"
    if not database.exists():
        raise ValueError(
            f"there must be a run to look at, {database} does not exist; run 'make demo' first"
        )
    mlflow = ["mlflow", "ui", "--backend-store-uri", sqlite_uri(database)]
    mlflow += ["--host", LOOPBACK, "--port", str(ports["mlflow"])]
    reports = ["http.server", str(ports["reports"]), "--bind", LOOPBACK, "--directory", str(root)]
    with ExitStack() as stack:
        environment = stack.enter_context(prefect_server(root, ports["prefect"]))
        for name, command in (("mlflow", mlflow), ("reports", reports)):
            log = root / f".{name}.log"
            process = stack.enter_context(server_process(bound_command(*command), environment, log))
            check = partial(check_running, process, name, log)
            wait_until_served(f"{local_url(ports[name])}/", f"{name} (log: {log})", check)
        print(f"Prefect   {local_url(ports['prefect'])}")
        # without its kind of workflow the page opens on chat traces
        page = "#/experiments?workflowType=machine_learning"
        print(f"MLflow    {local_url(ports['mlflow'])}/{page}")
        for report in sorted(root.glob("*/report/*.html")):
            url = f"{local_url(ports['reports'])}/{report.relative_to(root)}"
            print(f"{report.stem:<9} {url}")
        print("Ctrl-C ends the servers.", flush=True)
        signal.pause()


def local_url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"
