"""The token of a run never crosses the wire to its weights, and what does is no use to others."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from weight_servers import TOKEN, elastic_worker, order, serving, whole, wire, written

from tasks.elastic.weights import access
from tasks.elastic.weights.access import PROOF_HOLDS_S, SCHEME, Proofs, WeightRequest, signed
from tasks.elastic.weights.transfer import ServerConnection

NOW_S = 1_000_000.0
ASK = WeightRequest(
    method="GET", path="/versions/7/a%20b", ranges="bytes=0-9", body=b"", sender="10.0.0.2"
)


def test_a_proof_is_good_once_from_where_it_was_made() -> None:
    proofs, header = Proofs(TOKEN), signed(TOKEN, ASK, NOW_S)
    assert TOKEN not in header
    assert proofs.flaw(header, replace(ASK, sender="::ffff:10.0.0.2"), NOW_S + 1) == ""
    assert proofs.flaw(header, ASK, NOW_S + 2) == "its proof was used before"
    assert proofs.flaw(signed(TOKEN, ASK, NOW_S), ASK, NOW_S + 2) == "", "another nonce"


@pytest.mark.parametrize(
    "other",
    [
        replace(ASK, method="POST"),
        replace(ASK, path="/versions/8/a%20b"),
        replace(ASK, ranges="bytes=0-99"),
        replace(ASK, body=b"{}"),
        replace(ASK, sender="10.0.0.3"),
    ],
)
def test_a_proof_is_of_one_request_alone(other: WeightRequest) -> None:
    header = signed(TOKEN, ASK, NOW_S)
    assert "not of this request" in Proofs(TOKEN).flaw(header, other, NOW_S)
    assert "not of this request" in Proofs("another").flaw(header, ASK, NOW_S)


def test_a_proof_holds_for_a_while_and_cannot_be_dated_anew() -> None:
    header = signed(TOKEN, ASK, NOW_S)
    for late_s in (PROOF_HOLDS_S - 1, 1 - PROOF_HOLDS_S):
        assert Proofs(TOKEN).flaw(header, ASK, NOW_S + late_s) == ""
    for late_s in (PROOF_HOLDS_S + 1, -PROOF_HOLDS_S - 1):
        assert "of another time" in Proofs(TOKEN).flaw(header, ASK, NOW_S + late_s)
    later = header.replace(f"{NOW_S:.3f}", f"{NOW_S + 600:.3f}")
    assert "not of this request" in Proofs(TOKEN).flaw(later, ASK, NOW_S + 600)


@pytest.mark.parametrize(
    "header",
    ["", f"Bearer {TOKEN}", SCHEME, f"{SCHEME} 1 2", f"{SCHEME} 1 2 3 4", f"{SCHEME} nan  \udcff"],
)
def test_what_is_no_proof_is_refused(header: str) -> None:
    assert Proofs(TOKEN).flaw(header, ASK, NOW_S) != ""


def test_what_was_used_is_remembered_no_longer_than_it_could_be_used_again() -> None:
    proofs = Proofs(TOKEN)
    for number in range(100):
        now_s = NOW_S + number * PROOF_HOLDS_S
        assert proofs.flaw(signed(TOKEN, ASK, now_s), ASK, now_s) == ""
    assert len(proofs._used) == len(proofs._ends) <= 3


async def test_a_recorded_request_is_refused_when_it_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = written(tmp_path / "run")
    async with serving(weights) as server, wire(server.urls[0]) as between:
        with closing(ServerConnection(between.url, TOKEN, time.monotonic() + 20)) as connection:
            manifest = await asyncio.to_thread(connection.request, "GET", "/versions/7")
        (recorded,) = between.heads
        parts = urlsplit(server.urls[0])

        async def sent_again(sender: str) -> bytes:
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port, local_addr=(sender, 0)
            )
            writer.write(recorded)
            with closing(writer):
                return await reader.readline()

        assert manifest
        assert b"401" in await sent_again("127.0.0.1")
        server._access._proofs = Proofs(TOKEN)  # as a server that was started anew
        assert b"401" in await sent_again("127.0.0.2")
        now_s = time.time()
        with monkeypatch.context() as patch:
            patch.setattr(access.time, "time", lambda: now_s + PROOF_HOLDS_S + 1)
            assert b"401" in await sent_again("127.0.0.1")
        assert b"200" in await sent_again("127.0.0.1"), "it was a good one"
        reasons = {knock.reason for knock in server.denied_requests()}
    assert reasons == {
        "its proof was used before",
        "its proof is not of this request and the run's token",
        "its proof is of another time, clocks must agree to 300 s",
    }


async def test_a_whole_pull_shows_the_token_to_nobody(tmp_path: Path) -> None:
    weights = written(tmp_path / "run")
    async with serving(weights) as server, wire(server.urls[0]) as between:
        async with elastic_worker(tmp_path / "elastic") as held:
            here = await held.pull(order(between.url))
            assert Path(here.path).read_bytes() == Path(weights.path).read_bytes()
        asked = b"".join(between.heads)
        assert asked.count(SCHEME.encode()) > len(whole(weights).manifest.shards)
        assert TOKEN.encode() not in asked
        assert not server.denied_requests()
