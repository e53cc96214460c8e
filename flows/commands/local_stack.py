"""Servers on this machine for the length of a block: Prefect's on SQLite, and any other process
that answers a URL.

Nothing is left running, and no user profile is touched: Prefect's home is inside the artifact root.
Leaves out which servers a command needs (flows.commands.demo, flows.commands.ui).
"""

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
LOG_TAIL = 4000  # characters of a server's log that are looked at for its last words
# what they are called, and their usual ports, by the name of their option
SERVERS = {
    "prefect": ("the Prefect server", 4200),
    "mlflow": ("MLflow", 5000),
    "reports": ("the server of reports", 8788),
}
SERVER_LOG = Path(".prefect") / "server.log"  # below the artifact root
POLL_S = 0.2
LASTS_S = 5.0  # a server that ends sooner would do so again
STARTS_WITHIN_S = 90.0  # a server that was started answers by then


def prefect_environment(home: Path, port: int) -> dict[str, str]:
    """Settings of server and clients: one home, no telemetry, the task-run recorder in batches
    (SQLite answers 503 without), and clients that prepare for nothing which this server, on plain
    HTTP, does not ask of them."""
    # imported when asked for: a command that only shows its help does without pydantic
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
    """Write a single certificate for clients that check none: each reads its file of authorities
    before anything else, and all that there are take 20 ms of a core. Every task run through Dask
    makes two clients."""
    home.mkdir(parents=True, exist_ok=True)
    text = Path(certifi.where()).read_text()
    begin, end = text.index(CERTIFICATE_BEGINS), text.index(CERTIFICATE_ENDS)
    (home / AUTHORITY).write_text(f"{text[begin:end]}{CERTIFICATE_ENDS}\n")


def wish_of(name: str, named: int | None) -> Wish:
    """The port that one of SERVERS shall have, where its option names this one or none."""
    what, usual = SERVERS[name]
    port = usual if named is None else named
    return Wish(what=what, port=port, is_named=named is not None, cure=f"with --{name}-port")


def add_ports(parser: ArgumentParser, names: Iterable[str]) -> None:
    """--NAME-port for each of these of SERVERS."""
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

    url: str  # of its pages
    environment: dict[str, str]  # what its clients need
    # returns when it answers, or nobody needs it any more; raises what `wait_until_served` does
    wait: Callable[[Callable[[], bool]], None]
    # starts it again if it has ended; raises RuntimeError where it ended soon after its start
    keep: Callable[[], None] = lambda: None


@contextmanager
def prefect_server(root: Path, port: int) -> Iterator[dict[str, str]]:
    """A Prefect server with its home under root, on a port that is free, for the length of the
    block; yields the environment its clients need."""
    with starting_prefect_server(root, port) as server:
        server.wait(lambda: False)
        yield server.environment


@contextmanager
def starting_prefect_server(root: Path, port: int) -> Iterator[StartingServer]:
    """The same, without waiting until it answers."""
    name, url, log = "the Prefect server", f"http://{LOOPBACK}:{port}", root / SERVER_LOG
    home = (root / ".prefect").resolve()
    keep_one_authority(home)
    environment = prefect_environment(home, port)
    where = ("--host", LOOPBACK, "--port", str(port))
    command = bound_command("flows.commands.prefect_server", "server", "start", *where)
    with ExitStack() as stack:
        start = partial(server_process, command, environment, log)
        server = KeptServer(name, log, lambda: stack.enter_context(start()))
        told = f"{name} (log: {log})"
        wait = partial(wait_until_served, f"{url}/api/health", told, server.check)
        yield StartingServer(url=url, environment=environment, wait=wait, keep=server.keep)
        server.check()


class KeptServer:
    """A server that is started again when it has ended."""

    def __init__(self, name: str, log: Path, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._name, self._log, self._start = name, log, start
        self._begin()

    def check(self) -> None:
        """RuntimeError where it has ended."""
        check_running(self._process, self._name, self._log)

    def keep(self) -> None:
        """Start it again where it has ended. RuntimeError where that was soon after its start."""
        if (code := self._process.poll()) is None:
            return
        if time.monotonic() - self._began_s < LASTS_S:
            self.check()
        told = f"{self._name} {manner(code)}: it is started again, and the run waits for it"
        print(f"{told}; its log is {self._log}", file=sys.stderr, flush=True)
        self._begin()

    def _begin(self) -> None:
        self._process, self._began_s = self._start(), time.monotonic()


@contextmanager
def server_process(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own, so that Ctrl-C reaches only us; ended by terminate, then
    kill. Its command is one of `bound_command`, or it would stay where we are killed."""
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
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
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
    """Return when the URL is answered, or nobody needs it any more. Raises what `check` does, which
    looks whether there is still somebody to wait for, and TimeoutError after STARTS_WITHIN_S."""
    ends = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < ends:
        check()
        if is_needless():
            return
        try:
            with open_directly(url, 2):
                return
        except OSError:
            time.sleep(POLL_S)
    raise TimeoutError(f"{what} did not answer {url} within {STARTS_WITHIN_S:.0f} s")


def check_running(process: subprocess.Popen[bytes], what: str, log: Path) -> None:
    """Raise RuntimeError with how a server ended that should be there."""
    if (code := process.poll()) is not None:
        lines = log.read_text(errors="replace")[-LOG_TAIL:].splitlines()
        raise RuntimeError(f"{what} is gone: {account(code, lines, str(log))}")


def stop_on_signals() -> None:
    """SIGTERM, and SIGHUP of a terminal that is closed, end what was started as Ctrl-C does:
    servers and runs have sessions of their own and would stay."""
    signal.signal(signal.SIGTERM, interrupt)
    when_hung_up(interrupt)


def when_hung_up(do: Callable[..., None]) -> None:
    """Do this when the terminal is closed; not where SIGHUP is ignored, as below nohup."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, do)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
