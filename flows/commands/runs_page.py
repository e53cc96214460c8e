"""The page of all runs, over HTTP: drawn from the runs' own files at every request, so that it
needs neither Prefect nor MLflow, and shows runs while they go on.

    /                    a row per run; curves of those that go on, or of the latest
    /RUN/                one run with its curves
    /RUN/report/FILE     a file of its report folder; no other file is served
    /RUN/prefect, /RUN/mlflow    to the run's page there, or a page that tries again
"""

from __future__ import annotations

import html
import mimetypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from markupsafe import Markup

from artifacts import layout
from artifacts.commit import read_manifest
from artifacts.reports.figures import progress_text
from artifacts.reports.html_pages import templates
from artifacts.reports.step_curves import Points, StepCurves, drawing
from artifacts.run_ids import run_ids
from artifacts.store import Store
from flows.commands.page_servers import PageServers
from flows.commands.runs import RunLine, age_text, change_text, list_runs
from tasks.cluster.ports import LOOPBACK

REFRESH_S = 3.0
MAX_CURVES = 4  # runs whose curves the list shows
ROOT_HEADER = "Rollflow-Root"  # of every answer: which artifact root is served
HOSTS = (LOOPBACK, "localhost", "::1")  # a page of elsewhere may resolve its own name to loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as the page shows it."""

    line: RunLine
    address: str  # its name in URLs
    has_report: bool
    drawings: Sequence[tuple[str, str, Markup]]  # title, unit, <svg>; empty where not shown


class RunsPage:
    """Draws the pages of an artifact root. May be used by several threads."""

    def __init__(self, root: Path, servers: PageServers) -> None:
        self.root, self.servers = root, servers
        self.store = Store.open(str(root))
        self._curves, self._lock = StepCurves(), threading.Lock()
        environment = templates()
        environment.filters |= {
            "age": age_text,
            "change": change_text,
            "progress": lambda line: progress_text(line.steps, line.num_steps),
        }
        self._template = environment.get_template("runs.html")

    def draw(self, run_id: str = "") -> bytes:
        """The page of one run, or of all, as HTML in UTF-8."""
        with self._lock:
            lines = list_runs(self.store, datetime.now(UTC))[::-1]
            drawn = [line for line in lines if line.state == "running"] or lines[:1]
            names = {run_id} if run_id else {line.run_id for line in drawn[:MAX_CURVES]}
            rows = [self._row(line, line.run_id in names) for line in lines]
        servers = self.servers.prefect, self.servers.mlflow
        text = self._template.render(
            root=self.root,
            rows=rows,
            one=next((row for row in rows if row.line.run_id == run_id), None),
            is_priced=any(line.dollars is not None for line in lines),
            servers={server.name: server for server in servers},
            refresh_ms=int(1000 * REFRESH_S),
        )
        return text.encode("utf-8", errors="replace")

    def _row(self, line: RunLine, is_drawn: bool) -> RunRow:
        store = self.store.child(line.run_id)
        curves = self._curves.read(store, line.created) if is_drawn else ()
        return RunRow(
            line=line,
            address=quote(line.run_id, safe=""),
            has_report=store.exists(layout.report_file(layout.PAGE)),
            drawings=[
                (curve.title, curve.unit, drawing(curve, heldout_dots(line, curve.title)))
                for curve in curves
            ],
        )

    def report_file(self, run_id: str, name: str) -> Path | None:
        """A file in the report folder of a run; None if there is none, or if it lies outside."""
        folder = self.store.local_path(f"{run_id}/{layout.REPORT}").resolve()
        try:
            path = (folder / name).resolve()
            return path if path.is_relative_to(folder) and path.is_file() else None
        except (OSError, ValueError):  # too long, or with a NUL
            return None

    def other_page(self, run_id: str, name: str) -> str:
        """Address of a run's page in "prefect" or "mlflow"; empty while there is none."""
        manifest = read_manifest(self.store.child(run_id))
        of_run = {"prefect": self.servers.prefect_page, "mlflow": self.servers.mlflow_page}
        return of_run[name](manifest)


def heldout_dots(line: RunLine, title: str) -> Points:
    """Held-out rewards of a run before and after its steps, for the curve of rewards alone."""
    if title != "reward":
        return ()
    dots = ((0, line.reward_before), (line.steps, line.reward_after))
    return [(step, reward) for step, reward in dots if reward is not None]


class RunsServer(ThreadingHTTPServer):
    """Serves the pages on the loopback address."""

    daemon_threads = True

    def __init__(self, port: int, page: RunsPage) -> None:
        super().__init__((LOOPBACK, port), PageHandler)
        self.page = page


class PageHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: RunsServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in HOSTS:
                self._refuse(HTTPStatus.FORBIDDEN, "this page is of this machine alone")
            else:
                self._answer(unquote(urlsplit(self.path).path)[1:])
        except ConnectionError:  # the browser has left
            self.close_connection = True
        except (OSError, ValueError, LookupError) as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, path: str) -> None:
        page = self.server.page
        run_id, _, rest = path.partition("/")
        folder, _, name = rest.partition("/")
        if not path:
            self._send(page.draw())
        elif path == "favicon.ico":  # browsers ask for it beside a report
            self._send(b"", "image/x-icon")
        elif run_id not in run_ids(page.store):
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no run {run_id!r} here")
        elif path == run_id:  # with a slash, so that its relative links hold
            self._redirect(f"/{quote(run_id, safe='')}/")
        elif not rest:
            self._send(page.draw(run_id))
        elif rest in ("prefect", "mlflow"):
            if url := page.other_page(run_id, rest):
                self._redirect(url)
            else:
                self._send(waiting_page(page, rest))
        elif folder == layout.REPORT and (file := page.report_file(run_id, name)):
            self._send(file.read_bytes(), mimetypes.guess_type(file.name)[0] or "text/plain")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"run {run_id} has no page {rest!r}")

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        back = '<p><a href="/">all runs</a></p>'
        self._send(f"<p>{html.escape(reason)}</p>{back}".encode(), status=status)

    def _redirect(self, url: str) -> None:
        self._send(b"", status=HTTPStatus.FOUND, location=url)

    def _send(
        self,
        body: bytes,
        kind: str = "text/html",
        status: HTTPStatus = HTTPStatus.OK,
        location: str = "",
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if "text" in kind else kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header(ROOT_HEADER, quote(str(self.server.page.root)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal shows addresses alone."""


def waiting_page(page: RunsPage, name: str) -> bytes:
    """A page that asks again, for a server that does not answer or lacks the run."""
    servers = {"prefect": page.servers.prefect, "mlflow": page.servers.mlflow}
    server = servers[name]
    news = server.news or f"it answers at {server.url}, and does not know this run"
    return (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
        f"<title>{server.name}</title><p>{server.name}: {html.escape(news)}</p>"
        f'<p>This page tries again. <a href="./">back to the run</a></p>'
    ).encode()
