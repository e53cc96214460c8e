"""Start servers on this machine for the length of a block: Prefect on SQLite, and any other process
that answers a URL. No process stays behind, and Prefect's home is inside the artifact root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import certifi

from artifacts.proxies import direct, open_directly, own_hosts
from tasks.cluster.deaths import account, manner
from tasks.cluster.parent import bound_command
from tasks.cluster.ports import LOOPBACK, Wish
from tasks.cluster.process_environment import python_path

AUTHORITY = "authority.pem"  # in Prefect's home
CERTIFICATE_BEGINS, CERTIFICATE_ENDS = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"
LOG_TAIL = 4000  # characters of a server's log that are searched for its last words
# name of the option -> name of the server and its usual port
SERVERS = {
    "prefect": ("the Prefect server", 4200),
    "mlflow": ("MLflow", 5000),
    "reports": ("the server of reports", 8788),
}
SERVER_LOG = Path(".prefect") / "server.log"  # below the artifact root
POLL_S = 0.2
MIN_UPTIME_S = 5.0  # a server that ends sooner would do so again
START_TIMEOUT_S = 90.0  # for the first answer of a server


def prefect_environment(home: Path, port: int) -> dict[str, str]:
    """Environment of server and clients: one home, no telemetry, the task-run recorder in batches
    (otherwise SQLite answers 503), and no CSRF or TLS work for a plain-HTTP server."""
    # imported here, so that the help of a command needs no pydantic
    from artifacts.reports.mlflow_client import sqlite_uri

    return {
        "PREFECT_HOME": str(home),
        DATABASE: os.environ.get(DATABASE, sqlite_uri(home / "prefect.db", "sqlite+aiosqlite")),
        "PREFECT_API_SSL_CERT_FILE": str(home / AUTHORITY),
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false",
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
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "WARNING"
        ),
        "PREFECT_CLIENT_METRICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DASK_LOGGING__DISTRIBUTED": "warning",
    } | direct(os.environ, own_hosts())


def keep_one_authority(home: Path) -> None:
    """Write a file with a single certificate for the clients of a plain-HTTP server: each parses
    its file of authorities first, which takes 20 ms for the full one, twice in every task run."""
    home.mkdir(parents=True, exist_ok=True)
    text = Path(certifi.where()).read_text()
    begin, end = text.index(CERTIFICATE_BEGINS), text.index(CERTIFICATE_ENDS)
    (home / AUTHORITY).write_text(f"{text[begin:end]}{CERTIFICATE_ENDS}\n")


def wish_of(name: str, named: int | None) -> Wish:
    """The wanted port of one of SERVERS. named: the port that its option names, if any."""
    what, usual = SERVERS[name]
    port = usual if named is None else named
    return Wish(what=what, port=port, is_named=named is not None, cure=f"with --{name}-port")


def add_ports(parser: ArgumentParser, names: Iterable[str]) -> None:
    for name in names:
        usual = SERVERS[name][1]
        parser.add_argument(
            f"--{name}-port",
            type=int,
            metavar="PORT",
            help=f"0 takes a free one (default: {usual}, or a free one where that is taken)",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingServer:
    """A Prefect server that has been started and may not answer yet."""

    url: str  # address of its pages
    environment: dict[str, str]  # variables for its clients
    # returns when it answers, or when the callable says that nobody needs it any more; raises like
    # `wait_until_served`
    wait: Callable[[Callable[[], bool]], None]
    # restarts it if it has ended; RuntimeError if that was soon after its start
    keep: Callable[[], None] = lambda: None


@contextmanager
def prefect_server(root: Path, port: int) -> Iterator[dict[str, str]]:
    """Run a Prefect server with its home under `root`; yields the environment of its clients."""
    with starting_prefect_server(root, port) as server:
        server.wait(lambda: False)
        yield server.environment


@contextmanager
def starting_prefect_server(root: Path, port: int) -> Iterator[StartingServer]:
    """Run a Prefect server like `prefect_server`, without waiting for its first answer."""
    name, url, log = "the Prefect server", f"http://{LOOPBACK}:{port}", root / SERVER_LOG
    home = (root / ".prefect").resolve()
    keep_one_authority(home)
    environment = prefect_environment(home, port)
    where = ("--host", LOOPBACK, "--port", str(port))
    command = bound_command("flows.commands.prefect_server", "server", "start", *where)
    with ExitStack() as stack:
        start = partial(server_process, command, environment, log)
        server = KeptServer(name, log, lambda: stack.enter_context(start()))
        name_and_log = f"{name} (log: {log})"
        wait = partial(wait_until_served, f"{url}/api/health", name_and_log, server.check)
        yield StartingServer(url=url, environment=environment, wait=wait, keep=server.keep)
        server.check()


class KeptServer:
    """A server that can be restarted when it has ended."""

    def __init__(self, name: str, log: Path, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._name, self._log, self._start = name, log, start
        self._begin()

    def check(self) -> None:
        """RuntimeError if the server has ended."""
        check_running(self._process, self._name, self._log)

    def keep(self) -> None:
        """Restart the server if it has ended. RuntimeError if that was soon after its start."""
        if (code := self._process.poll()) is None:
            return
        if time.monotonic() - self._began_s < MIN_UPTIME_S:
            self.check()
        news = f"{self._name} {manner(code)}: it is started again, and the run waits for it"
        print(f"{news}; its log is {self._log}", file=sys.stderr, flush=True)
        self._begin()

    def _begin(self) -> None:
        self._process, self._began_s = self._start(), time.monotonic()


@contextmanager
def server_process(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child in a session of its own, which Ctrl-C does not reach, until the end of the block.
    The command must come from `bound_command`, so that the child ends with this process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **python_path(), **environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=15)


def wait_until_served(
    url: str,
    what: str,
    check: Callable[[], None] = lambda: None,
    is_needless: Callable[[], bool] = lambda: False,
) -> None:
    """Return once the URL answers or `is_needless`; `check` raises if the server is gone."""
    ends = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends:
        check()
        if is_needless():
            return
        try:
            with open_directly(url, 2):
                return
        except OSError:
            time.sleep(POLL_S)
    raise TimeoutError(f"{what} did not answer {url} within {START_TIMEOUT_S:.0f} s")


def check_running(process: subprocess.Popen[bytes], what: str, log: Path) -> None:
    """RuntimeError, with exit code and last log lines, if a server has ended."""
    if (code := process.poll()) is not None:
        lines = log.read_text(errors="replace")[-LOG_TAIL:].splitlines()
        raise RuntimeError(f"{what} is gone: {account(code, lines, str(log))}")


def stop_on_signals() -> None:
    """Make SIGTERM, and SIGHUP of a closed terminal, act like Ctrl-C: nothing stays behind."""
    signal.signal(signal.SIGTERM, interrupt)
    when_hung_up(interrupt)


def when_hung_up(do: Callable[..., None]) -> None:
    """Call `do` when the terminal is closed, unless SIGHUP is ignored, as under nohup."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, do)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
