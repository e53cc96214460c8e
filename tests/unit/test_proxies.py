"""Whoever has a proxy in the environment still reaches what is on this machine without it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
import requests

from artifacts.proxies import bypass_proxies, direct, own_hosts
from flows.commands.local_stack import prefect_environment, wait_until_served
from tasks.cluster.ports import LOOPBACK

SPELLINGS = tuple(
    spelling
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for spelling in (name, name.upper())
)


class Answer(BaseHTTPRequestHandler):
    """Answers 200, as the server that is meant."""

    status = 200

    def do_GET(self) -> None:  # the name is http.server's
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class Refusal(Answer):
    """Answers 502 to everything, as a proxy without a way to this machine."""

    status = 502


@contextmanager
def serving(handler: type[Answer]) -> Iterator[str]:
    with ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def meant() -> Iterator[str]:
    with serving(Answer) as url:
        yield url


@pytest.fixture(scope="module")
def proxy() -> Iterator[str]:
    with serving(Refusal) as url:
        yield url


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Sets the variables of proxies, and these alone; all are put back."""

    def set_all(values: Mapping[str, str]) -> None:
        for name in SPELLINGS:
            monkeypatch.setenv(name, "")  # so that it is put back whoever sets it
            monkeypatch.delenv(name)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


def by_urllib(url: str) -> int:
    """urlopen would keep these proxies for whoever asks next."""
    with urllib.request.build_opener().open(url, timeout=5) as answer:
        return int(answer.status)


def by_httpx(url: str) -> int:
    return httpx.get(url, timeout=5).status_code


def by_httpx_within_a_loop(url: str) -> int:
    """As Prefect's client asks."""

    async def ask() -> int:
        async with httpx.AsyncClient(timeout=5) as client:
            return (await client.get(url)).status_code

    return asyncio.run(ask())


def by_requests(url: str) -> int:
    """As MLflow's client asks."""
    return requests.Session().get(url, timeout=5).status_code


CLIENTS = (by_urllib, by_httpx, by_httpx_within_a_loop, by_requests)
PROXIES = tuple(name for name in SPELLINGS if not name.lower().startswith("no_"))


@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_asks_this_machine_directly(
    client: Callable[[str], int],
    name: str,
    meant: str,
    proxy: str,
    environment: Callable[[Mapping[str, str]], None],
) -> None:
    environment({name: proxy})
    bypass_proxies()
    assert client(meant) == 200


@pytest.mark.parametrize("kept", ["", "example.com", "10.0.0.0/8, .corp", "*", "corp,*"])
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize("client", CLIENTS)
def test_what_the_user_asks_directly_stays(
    client: Callable[[str], int],
    name: str,
    kept: str,
    meant: str,
    proxy: str,
    environment: Callable[[Mapping[str, str]], None],
) -> None:
    environment({"http_proxy": proxy, name: kept})
    bypass_proxies()
    assert client(meant) == 200
    told = os.environ["no_proxy"]
    assert os.environ["NO_PROXY"] == told
    assert told == "*" if "*" in kept else all(entry.strip() in told for entry in kept.split(","))


@pytest.mark.parametrize("client", CLIENTS[1:3])
def test_a_socks_proxy_that_no_client_here_can_use_is_none(
    client: Callable[[str], int],
    meant: str,
    environment: Callable[[Mapping[str, str]], None],
) -> None:
    """httpx raises for one before it asks anybody."""
    environment({"ALL_PROXY": "socks5h://127.0.0.1:9", "all_proxy": "socks5://127.0.0.1:9"})
    bypass_proxies()
    assert client(meant) == 200


def test_other_hosts_are_asked_by_the_users_proxy(proxy: str) -> None:
    """In a process of its own: nothing of the variables is remembered from another test."""
    script = (
        "import httpx, requests; from artifacts.proxies import bypass_proxies; bypass_proxies();"
        " url = 'http://rows.example/data';"
        " print(httpx.get(url).status_code, requests.get(url).status_code)"
    )
    asked = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"http_proxy": proxy},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.split() == ["502", "502"]


def test_names_and_addresses_of_this_machine_are_among_those_asked_directly() -> None:
    told = direct({"NO_PROXY": "a,b", "no_proxy": "b,c"}, own_hosts())
    entries = told["NO_PROXY"].split(",")
    assert told["NO_PROXY"] == told["no_proxy"]
    assert {"a", "b", "c", "localhost", "127.0.0.1", "::1"} <= {*entries}
    assert len(entries) == len({*entries})
    assert not any("%" in entry for entry in entries), "httpx takes no address with an interface"


def test_the_servers_of_a_demo_and_their_clients_inherit_it(
    environment: Callable[[Mapping[str, str]], None],
) -> None:
    environment({"https_proxy": "http://proxy.corp:3128", "NO_PROXY": ".corp"})
    assert prefect_environment(Path("/home"), 4321)["no_proxy"].startswith(".corp,localhost,")


def test_a_server_that_starts_is_looked_for_without_a_proxy(
    meant: str, proxy: str, environment: Callable[[Mapping[str, str]], None]
) -> None:
    environment(dict.fromkeys(PROXIES, proxy))
    wait_until_served(meant, "the server")
