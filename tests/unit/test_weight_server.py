"""Who gets what from a weight server."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from contextlib import closing
from pathlib import Path

import pytest
from weight_servers import CONFIG, SHARD, TOKEN, serving, whole, written

from artifacts.pictures import PictureFolder
from artifacts.store import Store
from artifacts.weight_shards import MODEL, from_json
from tasks.elastic.weights import server as server_module
from tasks.elastic.weights.access import MAX_DENIED, Access
from tasks.elastic.weights.held_version import HeldVersion
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.weights.transfer import ServerConnection, TransferBroken, WeightsRefused


async def ask(
    url: str, path: str, method: str = "GET", body: bytes | None = None, token: str = TOKEN
) -> bytes:
    def asked() -> bytes:
        with closing(ServerConnection(url, token, time.monotonic() + 20)) as connection:
            return connection.request(method, path, body)

    return await asyncio.to_thread(asked)


async def received(url: str, version: HeldVersion, index: int, start: int = 0) -> bytes:
    def asked() -> bytes:
        shard = version.manifest.shards[index]
        with closing(ServerConnection(url, TOKEN, time.monotonic() + 20)) as connection:
            return b"".join(map(bytes, connection.receive(version.manifest.name, shard, start)))

    return await asyncio.to_thread(asked)


async def test_a_manifest_and_ranges_of_its_files_are_served(tmp_path: Path) -> None:
    weights = written(tmp_path)
    content = Path(weights.path).read_bytes()
    async with serving(weights) as server:
        assert from_json(await ask(server.urls[0], "/versions/7")) == whole(weights).manifest
        assert await received(server.urls[0], whole(weights), 2) == content[2 * SHARD : 3 * SHARD]
        rest = await received(server.urls[0], whole(weights), 7, start=100)
        assert rest == content[7 * SHARD + 100 :]


async def test_a_version_and_the_one_before_it_are_kept(tmp_path: Path) -> None:
    versions = [written(tmp_path, version, 0.1) for version in (8, 9, 10)]
    async with serving(*versions) as server:
        await server.publish_model(tmp_path)
        for name in ("9", "10", MODEL):
            assert from_json(await ask(server.urls[0], f"/versions/{name}")).name == name
        with pytest.raises(WeightsRefused, match="410: version 8 is gone, 9 and 10 are kept"):
            await ask(server.urls[0], "/versions/8")
        with pytest.raises(WeightsRefused, match="404: version 11 has not been published"):
            await ask(server.urls[0], "/versions/11")
        overwritten = whole(versions[1])
        Path(versions[1].path).unlink()  # the learner writes the next version over it
        with pytest.raises(WeightsRefused, match="410: version 9 is gone"):
            await received(server.urls[0], overwritten, 0)


async def test_a_run_that_goes_back_makes_later_versions_anew(tmp_path: Path) -> None:
    versions = [written(tmp_path, version, 0.1) for version in (8, 9, 6)]
    async with serving(*versions) as server:
        assert from_json(await ask(server.urls[0], "/versions/6")).version == 6
        for later in (8, 9):
            with pytest.raises(WeightsRefused, match=r"404: version [89] has not been published"):
                await ask(server.urls[0], f"/versions/{later}")


async def test_a_published_version_is_served_from_where_it_lies(tmp_path: Path) -> None:
    weights = written(tmp_path)
    async with serving() as server:
        await server.publish(weights)
        manifest = from_json(await ask(server.urls[0], "/versions/7"))
        assert manifest.local(tmp_path) == weights


@pytest.mark.parametrize("path", ["/versions/7", "/versions/7/x", "/versions/7/source", "/", "/x"])
async def test_without_the_token_nothing_is_given_and_it_is_known_who_knocked(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(written(tmp_path, num_shards=0.1)) as server:
        for method in ("GET", "POST", "DELETE"):
            with pytest.raises(WeightsRefused, match="401: Unauthorized"):
                await ask(server.urls[0], path, method, token="another")
        (knock,) = server.denied_requests()
    assert (knock.address, knock.count) == ("127.0.0.1", 3)
    assert knock.reason == "its proof is not of this request and the run's token"
    assert "refused address=127.0.0.1 count=1" in caplog.text


async def test_an_address_outside_the_networks_gets_nothing_for_its_token(tmp_path: Path) -> None:
    server = WeightServer(CONFIG.model_copy(update={"allowed_senders": ("10.0.0.0/8",)}), TOKEN)
    await server.start()
    server.hold(whole(written(tmp_path, num_shards=0.1)))
    with pytest.raises(WeightsRefused, match="403: Forbidden"):
        await ask(server.urls[0], "/versions/7")
    assert [knock.address for knock in server.denied_requests()] == ["127.0.0.1"]
    await server.close()


def test_an_address_counts_in_either_spelling() -> None:
    access = Access(TOKEN, ["10.1.0.0/16", "fd00::/8"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        assert access.barred(address) is None
    for address in ("10.2.0.1", "::ffff:10.2.0.1", "fe80::1", "", "localhost"):
        assert access.barred(address) == 403


def test_strangers_fill_neither_memory_nor_log(caplog: pytest.LogCaptureFixture) -> None:
    access = Access(TOKEN, ["127.0.0.0/8"])
    for _ in range(100):
        access.barred("10.0.0.1")
    assert len(caplog.records) == 7  # of the 1st, 2nd, 4th ... 64th time
    for number in range(2 * MAX_DENIED):
        access.barred(f"10.1.0.{number}")
    assert len(access.denied_requests) == MAX_DENIED
    assert access.denied_requests[0].address == f"10.1.0.{2 * MAX_DENIED - 1}"


def test_a_run_without_a_token_serves_no_weights() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Access("", ["127.0.0.0/8"])


async def test_bytes_that_come_later_are_waited_for(tmp_path: Path) -> None:
    complete = whole(written(tmp_path))
    partial = HeldVersion(complete.manifest, tmp_path, [0])
    async with serving() as server:
        server.hold(partial)
        coming = asyncio.create_task(received(server.urls[0], complete, 3))
        await asyncio.wait([coming], timeout=0.1)
        assert not coming.done()
        partial.mark(2)
        partial.mark(3)
        assert len(await coming) == SHARD


async def test_bytes_that_do_not_come_are_refused_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SHARD_WAIT_S", 0.05)
    complete = whole(written(tmp_path))
    async with serving() as server:
        server.hold(HeldVersion(complete.manifest, tmp_path, [0]))
        with pytest.raises(TransferBroken, match="503: these bytes have not come yet"):
            await received(server.urls[0], complete, 3)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        pickle.dumps({"receiver": "x"}),
        json.dumps({"receiver": "x", "port": 0}).encode(),
        json.dumps({"receiver": "x", "port": 80, "failed": ["y"] * 1000}).encode(),
    ],
)
async def test_what_a_stranger_sends_is_checked(tmp_path: Path, body: bytes) -> None:
    async with serving(written(tmp_path, num_shards=0.1)) as server:
        with pytest.raises(WeightsRefused, match="400"):
            await ask(server.urls[0], "/versions/7/source", "POST", body)


async def test_no_path_leads_out_of_a_version(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    async with serving(written(tmp_path / "weights", num_shards=0.1)) as server:
        for path in ("../secret", "%2e%2e/secret", "..%2fsecret", f"{tmp_path}/secret"):
            with pytest.raises(WeightsRefused, match="404"):
                await ask(server.urls[0], f"/versions/7/{path}")


async def test_an_elastic_worker_that_left_gets_nobody_sent_to_it(tmp_path: Path) -> None:
    async with serving(written(tmp_path)) as server:

        async def source(name: str) -> object:
            body = json.dumps({"receiver": name, "port": 1234}).encode()
            return json.loads(await ask(server.urls[0], "/versions/7/source", "POST", body))[
                "source"
            ]

        assert await source("a") is None
        assert await source("b") == "http://127.0.0.1:1234"
        server.forget("a")
        server.forget("b")
        assert await source("c") is None


async def test_a_picture_is_served_by_its_content_to_who_has_the_token(tmp_path: Path) -> None:
    folder = PictureFolder(Store.open(str(tmp_path)))
    content, damaged = folder.keep(b"a picture"), folder.keep(b"another")
    (tmp_path / damaged).write_bytes(b"half")
    server = WeightServer(CONFIG, TOKEN, folder)
    await server.start()
    try:
        assert await ask(server.urls[0], f"/pictures/{content}") == b"a picture"
        with pytest.raises(WeightsRefused, match="404: the run shows no picture 0000"):
            await ask(server.urls[0], f"/pictures/{'0' * 64}")
        with pytest.raises(WeightsRefused, match=r"410: .* must be the picture"):
            await ask(server.urls[0], f"/pictures/{damaged}")
        for name in ("..", "../passwd", content.upper()):
            with pytest.raises(WeightsRefused, match="404"):
                await ask(server.urls[0], f"/pictures/{name}")
        with pytest.raises(WeightsRefused, match="401: Unauthorized"):
            await ask(server.urls[0], f"/pictures/{content}", token="another")
    finally:
        await server.close()


async def test_a_server_of_weights_alone_has_no_pictures() -> None:
    async with serving() as server:
        with pytest.raises(WeightsRefused, match="404: no pictures are served here"):
            await ask(server.urls[0], f"/pictures/{'0' * 64}")
