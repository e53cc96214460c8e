"""The servers of a run on one machine: a Prefect server on SQLite, and for looking back the MLflow
and report pages.

    python -m flows.commands.local_stack   serve the pages of what was run (what `make ui` does)

`flows.commands.demo` starts the Prefect server alone for the length of a run. Nothing is left
running, and no user profile is touched: Prefect's home is inside the artifact root.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tasks.cluster.deaths import account

LOOPBACK = "127.0.0.1"
LOG_TAIL = 4000  # characters of a server's log that are looked at for its last words
PREFECT_PORT, MLFLOW_PORT, REPORTS_PORT = 4200, 5000, 8788


def prefect_environment(home: Path, port: int) -> dict[str, str]:
    """Settings of server and clients: one home, no telemetry, and the task-run recorder in batches
    (SQLite answers 503 without)."""
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://{LOOPBACK}:{port}/api",
        "PREFECT_UI_URL": f"http://{LOOPBACK}:{port}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "500",
        "PREFECT_LOGGING_LEVEL": os.environ.get("PREFECT_LOGGING_LEVEL", "INFO"),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": os.environ.get(
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL"
        ),
        "PREFECT_CLIENT_METRICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DASK_LOGGING__DISTRIBUTED": "warning",
    }


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int, what: str, cure: str) -> None:
    """Raise ValueError if somebody listens on the port already."""
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            raise ValueError(f"the port of {what} must be free, {port} is in use; {cure}")


@contextmanager
def prefect_server(root: Path, port: int, deadline_s: float = 90.0) -> Iterator[dict[str, str]]:
    """A Prefect server with its home under root, for the length of the block; yields the
    environment its clients need."""
    check_port(
        port,
        "the Prefect server",
        "end what listens there, or choose another with --prefect-port (0 takes a free one)",
    )
    environment = prefect_environment((root / ".prefect").resolve(), port)
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        LOOPBACK,
        "--port",
        str(port),
    ]
    with _process(command, environment, root / ".prefect" / "server.log") as server:
        _wait_until_served(
            f"http://{LOOPBACK}:{port}/api/health",
            server,
            "the Prefect server",
            root / ".prefect" / "server.log",
            deadline_s,
        )
        yield environment
        _check_running(server, "the Prefect server", root / ".prefect" / "server.log")


@contextmanager
def _process(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own, so that Ctrl-C reaches only us; ended by terminate, then
    kill."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=15)


def _wait_until_served(
    url: str, process: subprocess.Popen[bytes], what: str, log: Path, deadline_s: float
) -> None:
    ends = time.monotonic() + deadline_s
    while time.monotonic() < ends:
        _check_running(process, what, log)
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(f"{what} did not answer {url} within {deadline_s:.0f} s; its log is {log}")


def _check_running(process: subprocess.Popen[bytes], what: str, log: Path) -> None:
    """Raise RuntimeError with how a server ended that should be there."""
    if (code := process.poll()) is not None:
        lines = log.read_text(errors="replace")[-LOG_TAIL:].splitlines()
        raise RuntimeError(f"{what} is gone: {account(code, lines)}; its log is {log}")


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
        f"sqlite:///{database}",
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
            process = stack.enter_context(
                _process([sys.executable, "-m", *command], environment, log)
            )
            _wait_until_served(url, process, name, log, 90.0)
        _print_pages(prefect_port, mlflow_port, reports_port, root)
        signal.pause()


def _print_pages(prefect_port: int, mlflow_port: int, reports_port: int, root: Path) -> None:
    print(f"Prefect   http://{LOOPBACK}:{prefect_port}")
    print(
        f"MLflow    http://{LOOPBACK}:{mlflow_port}/#/experiments?workflowType=machine_learning"
    )  # else it opens on chat traces
    for page in sorted(root.glob("*/report/*.html")):
        print(f"{page.stem:<9} http://{LOOPBACK}:{reports_port}/{page.relative_to(root)}")
    print("Ctrl-C ends the servers.", flush=True)


def interrupt(*_: object) -> None:
    """SIGTERM ends what was started as Ctrl-C does; servers and runs have sessions of their own and
    would stay."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flows.commands.local_stack", description="Serve the pages of what was run."
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("runs"),
        help="artifact root of the runs (default: %(default)s)",
    )
    parser.add_argument(
        "--prefect-port",
        type=int,
        default=PREFECT_PORT,
        help="0 takes a free one (default: %(default)s)",
    )
    parser.add_argument("--mlflow-port", type=int, default=MLFLOW_PORT, help="default: %(default)s")
    parser.add_argument(
        "--reports-port", type=int, default=REPORTS_PORT, help="default: %(default)s"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        serve_pages(
            options.root.resolve(),
            options.prefect_port or free_port(),
            options.mlflow_port,
            options.reports_port,
        )
    except KeyboardInterrupt:
        return 0
    except (ValueError, RuntimeError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
