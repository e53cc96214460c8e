"""A hub on loopback: as much of its protocol as huggingface_hub asks for, over folders of files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants


@dataclass
class Repository:
    """One repository at one commit."""

    files: Mapping[str, bytes]
    branch: str = "main"
    is_gated: bool = False

    @property
    def commit(self) -> str:
        names = sorted((name, blob(data)) for name, data in self.files.items())
        return hashlib.sha1(json.dumps(names).encode()).hexdigest()


@dataclass
class Hub:
    """Repositories by their place (`models/acme/tiny`), and what was asked for."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    @property
    def fetched(self) -> list[str]:
        """Names of the files whose bytes were sent."""
        return [path.partition("/resolve/")[2].partition("/")[2] for path in self.asked]


def blob(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            """Nothing: a test's output is its own."""

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path).lstrip("/")
            if path.startswith("api/"):
                self.describe(path.removeprefix("api/"))
            else:
                self.resolve(path if path.startswith("datasets/") else f"models/{path}")

        def describe(self, path: str) -> None:
            place, _, rest = path.partition("/revision/")
            if not rest:
                place, _, rest = path.partition("/tree/")
            repository = self.known(place, rest)
            if repository is None:
                return
            if "/revision/" in path:
                siblings = [{"rfilename": name} for name in repository.files]
                self.send(json.dumps({"id": place, "sha": repository.commit, "siblings": siblings}))
            else:
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": blob(data)}
                    for name, data in repository.files.items()
                ]
                self.send(json.dumps(entries))

        def resolve(self, path: str) -> None:
            place, _, rest = path.partition("/resolve/")
            revision, _, name = rest.partition("/")
            repository = self.known(place, revision)
            if repository is None:
                return
            if repository.is_gated:
                self.refuse(403, "GatedRepo")
            elif name not in repository.files:
                self.refuse(404, "EntryNotFound")
            else:
                if self.command == "GET":
                    hub.asked.append(path)
                self.send(repository.files[name], repository)

        def known(self, place: str, revision: str) -> Repository | None:
            repository = hub.repositories.get(place)
            if repository is None:
                self.refuse(401, "RepoNotFound")
            elif revision not in (repository.branch, repository.commit):
                self.refuse(404, "RevisionNotFound")
                return None
            return repository

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send(self, body: bytes | str, repository: Repository | None = None) -> None:
            data = body if isinstance(body, bytes) else body.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json" if repository is None else "text")
            self.send_header("ETag", f'"{blob(data)}"')
            if repository is not None:
                self.send_header("X-Repo-Commit", repository.commit)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    return Handler


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A hub with nothing in it, at an endpoint of its own."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def use_hub(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: object) -> None:
    """The client as HF_ENDPOINT and HF_HUB_CACHE make it; it reads them when it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
