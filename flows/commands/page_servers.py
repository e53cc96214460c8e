"""The servers of Prefect and MLflow beside the page of runs: each starts in a thread, says when it
answers, and takes no other down with it.

    no data yet ─▶ starting ─▶ answers ─┐
                       ▲                ▼
                       └── waits ◀── is gone

While the Prefect server of a run answers, it is used: two servers on one SQLite file slow the run.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

from artifacts.commit import RunManifest, read_manifest
from artifacts.proxies import open_directly
from artifacts.reports.mlflow_client import VIEW, sqlite_uri
from artifacts.store import Store
from flows.commands.local_stack import (
    check_running,
    server_process,
    starting_prefect_server,
    wait_until_served,
)
from flows.commands.runs import list_runs
from flows.config.sentence import sentence
from tasks.cluster.parent import bound_command
from tasks.cluster.ports import LOOPBACK

ANSWER_S = 3.0  # a server that does not answer a page's question within this time is away
WATCH_S = 1.0  # between two looks at a server
BEGUN_S = 180.0  # within this time of its server's start a run has a folder
QUIET_S = 15.0  # a database without a change for so long has no server
RETRY_S = 30.0  # from a server's end to the next try
FLOW_RUN_URL = "prefect.flow_run_url"  # of a manifest's links
MODEL_TRAINING = "workflowType=machine_learning"  # MLflow's face that shows runs; another is chats'


def local_url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


@dataclass(slots=True, kw_only=True)
class PageServer:
    """A server as the page of runs knows it."""

    name: str
    port: int
    news: str = "starting"  # what it does, in a few words; empty once it answers
    url: str = ""  # its address once it answers


class PageServers:
    """Prefect and MLflow of one artifact root."""

    def __init__(
        self, root: Path, prefect_port: int, mlflow_port: int, tell: Callable[[str], object] = print
    ) -> None:
        """tell: gets a line when a server answers, and when it does not."""
        self._root, self._tell = root, tell
        self._store = Store.open(str(root))
        self._stop = threading.Event()
        self.prefect = PageServer(name="Prefect", port=prefect_port)
        self.mlflow = PageServer(name="MLflow", port=mlflow_port)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start both; end them after the block."""
        threads = [
            threading.Thread(target=self._keep, args=(server, serve), name=server.name)
            for server, serve in (
                (self.prefect, self._serve_prefect),
                (self.mlflow, self._serve_mlflow),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def prefect_page(self, manifest: RunManifest) -> str:
        """Address of a run in Prefect; empty while no server knows it."""
        kept = manifest.links.get(FLOW_RUN_URL, "")
        flow_run = next(reversed(manifest.prefect_flow_run_ids), "")
        if _has_flow_run(_origin(kept), flow_run):
            return kept
        url = self.prefect.url
        return f"{url}/runs/flow-run/{flow_run}" if _has_flow_run(url, flow_run) else ""

    def mlflow_page(self, manifest: RunManifest) -> str:
        """Address of a run in MLflow, on the tracking server if it has one; empty while no server
        knows it."""
        uri, run = str(manifest.config["keep"].get("tracking_uri") or ""), manifest.mlflow_run_id
        if uri.startswith(("http://", "https://")):
            return f"{uri.rstrip('/')}/#/runs/{run}"
        with suppress(OSError, ValueError, KeyError):
            found = _ask_mlflow(self.mlflow.url, f"runs/get?run_id={run}")
            experiment = found["run"]["info"]["experiment_id"]
            return f"{self.mlflow.url}/#/experiments/{experiment}/runs/{run}?{MODEL_TRAINING}"
        return ""

    def mlflow_list(self) -> str:
        """Address of MLflow's list of runs, with the columns of Rollflow; empty while MLflow does
        not answer."""
        lines = list_runs(self._store, datetime.now(UTC))
        with suppress(OSError, ValueError, KeyError, IndexError):
            manifest = read_manifest(self._store.child(lines[-1].run_id))
            name = quote(str(manifest.config["keep"]["experiment"]), safe="")
            question = f"experiments/get-by-name?experiment_name={name}"
            experiment = _ask_mlflow(self.mlflow.url, question)["experiment"]["experiment_id"]
            view = f"runs?{MODEL_TRAINING}&viewStateShareKey={VIEW}"
            return f"{self.mlflow.url}/#/experiments/{experiment}/{view}"
        return self.mlflow.url and f"{self.mlflow.url}/#/experiments?{MODEL_TRAINING}"

    def _keep(self, server: PageServer, serve: Callable[[PageServer], None]) -> None:
        """Serve until the end; begin again after a failure."""
        while not self._stop.is_set():
            try:
                serve(server)
            except (OSError, RuntimeError, ValueError) as error:
                self._say(server, sentence(error).removeprefix(f"{server.name} "))
                self._stop.wait(RETRY_S)

    def _say(self, server: PageServer, news: str, url: str = "") -> None:
        """Set a server's state, and tell of a new one; a server with an address tells that."""
        if (server.news, server.url) != (news, url) and not self._stop.is_set():
            server.news, server.url = news, url
            address = self.mlflow_list() if url and server is self.mlflow else url
            self._tell(f"{server.name:<9} {'  '.join(filter(None, (address, news)))}")

    def _await_data(self, server: PageServer, file: Path) -> None:
        while not file.exists() and not self._stop.is_set():
            self._say(server, "no run has kept anything in it here yet")
            self._stop.wait(WATCH_S)

    def _serve_mlflow(self, server: PageServer) -> None:
        database, log = self._root / "mlflow.db", self._root / ".mlflow.log"
        self._await_data(server, database)
        self._say(server, "starting")
        words = ["mlflow", "ui", "--backend-store-uri", sqlite_uri(database)]
        command = bound_command(*words, "--host", LOOPBACK, "--port", str(server.port))
        # without its processes for jobs of evaluations, which no run has
        environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
        url = local_url(server.port)
        with server_process(command, environment, log) as process:
            check = partial(check_running, process, server.name, log)
            what = f"{server.name} (log: {log})"
            answer = partial(wait_until_served, f"{url}/", what, check)
            self._await_answer(server, lambda: answer(self._stop.is_set))
            self._say(server, "", url)
            while not self._stop.wait(WATCH_S):
                check()

    def _serve_prefect(self, server: PageServer) -> None:
        database = self._root / ".prefect" / "prefect.db"
        self._await_data(server, database)
        self._await_first(server, database.with_name(f"{database.name}-wal"))
        if url := self._prefect_of_a_run():
            self._say(server, "the server of a run that goes on", url)
            while self._prefect_of_a_run() == url:
                if self._stop.wait(5 * WATCH_S):
                    return
        elif not self._stop.is_set():
            self._say(server, "starting")
            with starting_prefect_server(self._root, server.port) as own:
                self._await_answer(server, lambda: own.wait(self._stop.is_set))
                self._say(server, "", own.url)
                while not self._stop.wait(WATCH_S):
                    own.keep()

    def _await_first(self, server: PageServer, log: Path) -> None:
        """Wait until a server that writes to the database is known by its run, or writes no more: a
        demo starts its own before its run has a folder. log: of the database's changes."""
        ends = time.monotonic() + BEGUN_S
        while time.monotonic() < ends and not self._prefect_of_a_run():
            if not log.exists() or time.time() - log.stat().st_mtime > QUIET_S:
                return
            self._say(server, "another server writes to its data; its run is awaited")
            if self._stop.wait(WATCH_S):
                return

    def _await_answer(self, server: PageServer, wait: Callable[[], None]) -> None:
        """Wait for a first answer as long as the server lives: a busy host is slow."""
        while not self._stop.is_set():
            try:
                wait()
                break
            except TimeoutError:
                self._say(server, "no answer yet, and still awaited: the machine is busy")

    def _prefect_of_a_run(self) -> str:
        """Address of the Prefect server of a run that goes on, if one answers."""
        for line in list_runs(self._store, datetime.now(UTC)):
            if line.state == "running":
                with suppress(OSError, ValueError):
                    manifest = read_manifest(self._store.child(line.run_id))
                    url = _origin(manifest.links.get(FLOW_RUN_URL, ""))
                    if _has_flow_run(url, next(reversed(manifest.prefect_flow_run_ids), "")):
                        return url
        return ""


def _origin(url: str) -> str:
    """Scheme and host of an http URL; empty for others."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else ""


def _has_flow_run(origin: str, flow_run: str) -> bool:
    """True if the Prefect server there has this flow run."""
    if not (origin and flow_run):
        return False
    question = f"{origin}/api/flow_runs/{flow_run}"
    with suppress(OSError, ValueError), open_directly(question, ANSWER_S):
        return True
    return False


def _ask_mlflow(url: str, question: str) -> dict[str, dict[str, dict[str, str]]]:
    """The answer of MLflow's API. Raises OSError, ValueError without an address."""
    with open_directly(f"{url}/api/2.0/mlflow/{question}", ANSWER_S) as answer:
        found: dict[str, dict[str, dict[str, str]]] = json.load(answer)
    return found
