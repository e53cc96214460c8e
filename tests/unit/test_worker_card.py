"""An elastic worker's card: what it says, what it proves and to whom, and what counts as a
notice."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.elastic import worker_process
from tasks.elastic.worker_card import (
    EARLIER_TOKEN_VARIABLE,
    PROOF_HOLDS_S,
    TOKEN_VARIABLE,
    Terms,
    WorkerCard,
    devices_here,
    installed,
    is_proven,
    make_card,
    read_card,
    read_token,
)
from tasks.elastic.worker_process import is_notice, notice_given

ADDRESS = "tcp://10.0.0.2:9000"


def card(token: str = "secret", made_s: float = 1000.0) -> WorkerCard:
    terms = Terms(price_class="spot", token=token, drain_s=30.0, lease_s=20.0, grace_s=60.0)
    return make_card("spot-1", ADDRESS, terms, ("cuda:0",), made_s)


def test_a_card_is_plain_values_without_the_token() -> None:
    text = json.dumps(card())
    assert json.loads(text) == card()
    assert "secret" not in text
    assert "secret" not in repr(
        Terms(price_class="spot", token="secret", drain_s=1.0, lease_s=1.0, grace_s=1.0)
    )
    assert card()["rollflow"] == installed("rollflow") != ""


def test_a_proof_counts_for_one_token_one_address_one_name_and_a_while() -> None:
    assert is_proven(card(), "secret", ADDRESS, 1000.0 + PROOF_HOLDS_S)
    assert not is_proven(card(), "another", ADDRESS, 1000.0)
    assert not is_proven(card(), "secret", "tcp://10.0.0.3:9000", 1000.0)
    assert not is_proven({**card(), "name": "spot-2"}, "secret", ADDRESS, 1000.0)
    assert not is_proven(card(), "secret", ADDRESS, 1001.0 + PROOF_HOLDS_S)
    assert not is_proven(card(), "secret", ADDRESS, 999.0 - PROOF_HOLDS_S)
    moved = {**card(), "made_s": 5000.0}
    assert not is_proven(moved, "secret", ADDRESS, 5000.0)


def test_an_elastic_worker_without_the_token_proves_nothing_to_a_run_that_has_one() -> None:
    assert not is_proven(card(token=""), "secret", ADDRESS, 1000.0)
    assert is_proven(card(token=""), "", ADDRESS, 1000.0)


def test_a_worker_that_is_no_elastic_worker_has_no_card() -> None:
    worker = SimpleNamespace(name="engine-0", extensions={})
    with pytest.raises(LookupError, match="engine-0 was not; start it by 'rollflow worker'"):
        read_card(dask_worker=worker)


def test_the_token_is_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "of-the-environment")
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    assert read_token(str(file)) == "of-the-file"
    assert read_token("") == "of-the-environment"
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert read_token("") == ""
    file.write_text("\n")
    with pytest.raises(ValueError, match="must hold the run's token"):
        read_token(str(file))


def test_the_tokens_earlier_variable_is_read_where_todays_is_not_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a run would take workers that know no token."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv(EARLIER_TOKEN_VARIABLE, "of-before")
    assert read_token("") == "of-before"
    (line,) = caplog.messages
    assert (
        line == f"{EARLIER_TOKEN_VARIABLE} is {TOKEN_VARIABLE} now; the old name is read until 0.3"
    )
    monkeypatch.setenv(TOKEN_VARIABLE, "of-today")
    assert read_token("") == "of-today"


@pytest.mark.parametrize("token", ["two\nlines", "a blank", "umläut"])
def test_a_token_is_one_line_and_is_never_repeated(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    for named in (str(file), ""):
        with pytest.raises(ValueError, match="one line of ASCII") as caught:
            read_token(named)
        assert token not in str(caught.value)


def test_an_elastic_worker_has_the_gpus_it_may_see_or_its_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert devices_here() == ("cuda:2", "cuda:3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert all(device.startswith("cpu:") for device in devices_here())


@pytest.mark.parametrize(
    ("status", "body", "means_the_end"),
    [
        (200, '{"action": "terminate", "time": "2026-11-23T10:00:00Z"}', True),
        (200, "TRUE", True),
        (200, "FALSE\n", False),
        (200, "", False),
        (404, "not found", False),
    ],
)
def test_clouds_tell_the_end_in_their_own_ways(status: int, body: str, means_the_end: bool) -> None:
    assert is_notice(status, body) is means_the_end


class Cloud(BaseHTTPRequestHandler):
    """Google's address: it answers who sends its header."""

    def do_GET(self) -> None:  # the name that http.server wants
        told = self.path == "/preempted" and self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if told else 404)
        self.end_headers()
        self.wfile.write(b"TRUE")

    def log_message(self, *_: object) -> None: ...


async def test_an_address_of_the_cloud_gives_notice() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Cloud) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        await notice_given(f"{url}/preempted")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(notice_given(f"{url}/nothing"), 0.2)
        server.shutdown()


async def test_a_file_that_appears_is_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "NOTICE_POLL_S", 0.01)
    looked: list[str] = []

    def appears_in_the_second_look(path: str) -> bool:
        looked.append(path)
        return len(looked) == 2

    monkeypatch.setattr("os.path.exists", appears_in_the_second_look)
    await notice_given(str(tmp_path / "notice"))
    assert len(looked) == 2


async def test_a_file_that_cannot_be_looked_for_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(notice_given(f"{tmp_path}/{'x' * 300}"), 0.2)
