"""Ports and settings of the local servers; no server is started."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy.engine import make_url

from flows.commands import local_stack
from flows.commands.local_stack import (
    DATABASE,
    prefect_environment,
    wait_until_served,
)
from flows.commands.train import stop_when_hung_up
from flows.commands.ui import main
from tasks.cluster.ports import LOOPBACK, free_port


def test_clients_of_the_server_read_one_authority_and_ask_for_no_token(
    tmp_path: Path,
) -> None:
    local_stack.keep_one_authority(tmp_path / "home")
    settings = prefect_environment(tmp_path / "home", 4321)
    authority = settings["PREFECT_API_SSL_CERT_FILE"]
    assert len(ssl.create_default_context(cafile=authority).get_ca_certs()) == 1
    assert settings["PREFECT_CLIENT_CSRF_SUPPORT_ENABLED"] == "false"


class Health(BaseHTTPRequestHandler):
    """Answers well."""

    def do_GET(self) -> None:  # the name is http.server's
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_server_is_waited_for_until_it_answers() -> None:
    with HTTPServer((LOOPBACK, 0), Health, bind_and_activate=False) as server:
        server.server_bind()  # it does not listen yet
        asked: list[int] = []

        def check() -> None:
            asked.append(len(asked))
            if len(asked) == 2:
                server.server_activate()
                Thread(target=server.handle_request, daemon=True).start()

        wait_until_served(f"http://{LOOPBACK}:{server.server_port}", "the server", check)
    assert asked == [0, 1]


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stack, "START_TIMEOUT_S", 0.1)
    url = f"http://{LOOPBACK}:{free_port()}"
    with pytest.raises(TimeoutError, match=f"the server did not answer {url} within 0 s"):
        wait_until_served(url, "the server")


def test_prefect_stays_inside_its_home_and_tells_nobody() -> None:
    settings = prefect_environment(Path("/runs/.prefect"), 4321)
    assert settings["PREFECT_HOME"] == "/runs/.prefect"
    assert settings["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
    assert settings["PREFECT_UI_URL"] == "http://127.0.0.1:4321"
    assert (settings["PREFECT_SERVER_ANALYTICS_ENABLED"], settings["DO_NOT_TRACK"]) == (
        "false",
        "1",
    )
    assert all(isinstance(value, str) for value in settings.values())


def test_prefects_data_base_is_in_its_home_and_may_be_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DATABASE, raising=False)
    home = Path("/runs/50%41 what?/.prefect")
    url = make_url(prefect_environment(home, 1)[DATABASE])
    assert (url.drivername, url.database) == ("sqlite+aiosqlite", str(home / "prefect.db"))
    monkeypatch.setenv(DATABASE, "postgresql+asyncpg://host/db")
    assert prefect_environment(home, 1)[DATABASE] == "postgresql+asyncpg://host/db"


def test_a_log_level_of_the_users_own_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_LOGGING_LEVEL", raising=False)
    assert prefect_environment(Path("/x"), 1)["PREFECT_LOGGING_LEVEL"] == "INFO"
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    assert prefect_environment(Path("/x"), 1)["PREFECT_LOGGING_LEVEL"] == "DEBUG"


@pytest.fixture
def ports() -> Iterator[list[str]]:
    """Options with free ports, at a terminal; the handlers that `main` sets are taken back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    options = (f"--mlflow-port={free_port()}", f"--reports-port={free_port()}")
    yield ["--prefect-port=0", *options]
    for number, handler in before.items():
        signal.signal(number, handler)


def test_pages_without_a_run_are_refused(
    ports: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(tmp_path), *ports]) == 2
    for number in (signal.SIGTERM, signal.SIGHUP):  # end the servers, as Ctrl-C does
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert (
        f"there must be a run to look at, {tmp_path} has none; 'rollflow demo --preset tiny' makes"
        in capsys.readouterr().err
    )


def test_below_nohup_a_closed_terminal_ends_nothing(ports: list[str], tmp_path: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert main(["--root", str(tmp_path), *ports]) == 2
    os.kill(os.getpid(), signal.SIGHUP)


def test_a_closed_terminal_stops_a_run_as_sigterm_does(ports: list[str]) -> None:
    signal.signal(signal.SIGTERM, local_stack.interrupt)
    stop_when_hung_up()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)


def test_a_root_that_is_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "root").touch()
    with pytest.raises(SystemExit):
        main(["--root", str(tmp_path / "root")])
    assert "must be a folder, " in capsys.readouterr().err
