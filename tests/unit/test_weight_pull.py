"""An elastic worker pulls a version over a wire that fails, and from peers that die or lie."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weight_servers import (
    CONFIG,
    SHARD,
    TOKEN,
    elastic_worker,
    order,
    serving,
    whole,
    wire,
    written,
)

from artifacts.records import WeightsRef
from artifacts.weight_shards import decode_delta, encode_delta, verify
from tasks.elastic.weights import client, server, transfer
from tasks.elastic.weights.client import fetch
from tasks.elastic.weights.held_version import HeldVersion
from tasks.elastic.weights.transfer import Pull, WeightsRefused


async def pulled(asked: Pull, folder: Path) -> WeightsRef:
    version = await asyncio.to_thread(fetch, asked, folder)
    return version.manifest.local(version.folder)


def same(pulled: WeightsRef, published: WeightsRef) -> bool:
    told = (pulled.version, pulled.digest) == (published.version, published.digest)
    return told and Path(pulled.path).read_bytes() == Path(published.path).read_bytes()


def ranges(heads: list[bytes]) -> list[int]:
    """Where the ranges begin that were asked for."""
    return [int(start) for start in re.findall(rb"bytes=(\d+)-", b"".join(heads))]


async def test_a_pulled_version_is_the_published_one(tmp_path: Path) -> None:
    weights = written(tmp_path / "trainer")
    async with serving(weights) as origin:
        got = await pulled(order(origin.urls[0]), tmp_path / "elastic")
    assert got.path == str(tmp_path / "elastic" / "7" / "00007.safetensors")
    assert same(got, weights)


async def test_the_model_folder_comes_with_all_its_files(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "empty.txt").touch()
    async with serving() as origin:
        await origin.publish_model(model)
        got = await pulled(order(origin.urls[0], name="model"), tmp_path / "elastic")
    assert got.path == str(tmp_path / "elastic" / "model")
    assert (Path(got.path) / "config.json").read_text() == "{}"
    assert (Path(got.path) / "empty.txt").read_bytes() == b""


async def test_a_broken_transfer_goes_on_where_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONNECTIONS", 1)
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    monkeypatch.setattr(transfer, "BLOCK_BYTES", 4000)
    weights = written(tmp_path / "trainer", num_shards=4)
    async with serving(weights) as origin, wire(origin.urls[0]) as link:
        link.cut_at = 2 * SHARD + SHARD // 2
        assert same(await pulled(order(link.url), tmp_path / "elastic"), weights)
    starts = ranges(link.heads)
    assert starts[:3] == [0, SHARD, 2 * SHARD]
    assert 2 * SHARD < starts[3] < 3 * SHARD  # in the middle of the third one
    assert starts[4:] == [3 * SHARD]


async def test_a_silent_link_counts_as_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "STALL_S", 0.1)
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    async with serving(written(tmp_path / "trainer")) as origin, wire(origin.urls[0]) as link:
        link.is_silent = True
        with pytest.raises(
            TimeoutError, match=r"version 7 did not come from .* within 0 s: .*timed"
        ):
            await pulled(order(link.url, deadline_s=0.25), tmp_path / "elastic")


@pytest.mark.parametrize("silent_from", [0, 2 * SHARD])
async def test_an_address_that_falls_silent_is_replaced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_from: int
) -> None:
    """Before the manifest or in mid-transfer; what has come already is not asked for again."""
    monkeypatch.setattr(transfer, "STALL_S", 0.2)
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    weights = written(tmp_path / "trainer")
    async with (
        serving(weights) as origin,
        wire(origin.urls[0]) as first,
        wire(origin.urls[0]) as second,
    ):
        first.is_silent, first.drips_from = not silent_from, silent_from or None
        if silent_from:
            monkeypatch.setattr("weight_servers.DRIP_S", 60)  # from there on nothing comes
        both = replace(order(first.url), origins=(first.url, second.url))
        assert same(await pulled(both, tmp_path / "elastic"), weights)
    assert first.heads
    asked_again = ranges(second.heads)
    assert len(asked_again) == 8 if not silent_from else 0 < len(asked_again) < 8


async def test_a_server_listens_on_the_address_of_each_interface(tmp_path: Path) -> None:
    weights = written(tmp_path / "trainer")
    config = CONFIG.model_copy(update={"host": "", "interface": ("lo", "lo")})
    assert config.addresses == ("127.0.0.1", "127.0.0.1")
    origin = server.WeightServer(config.model_copy(update={"interface": ("lo",)}), TOKEN)
    await origin.start()
    try:
        origin.hold(whole(weights))
        [url] = origin.urls
        assert url == f"http://127.0.0.1:{origin.port}"
        assert same(await pulled(order(url), tmp_path / "elastic"), weights)
    finally:
        await origin.close()


@pytest.mark.parametrize(
    ("drips_from", "there"), [(0, "timed out"), (2 * SHARD, r"[01] of 8 shards are there")]
)
async def test_a_link_that_drips_keeps_no_pull_beyond_its_deadline(
    tmp_path: Path, drips_from: int, there: str
) -> None:
    """Every byte comes in time, the manifest or a shard does not."""
    async with serving(written(tmp_path / "trainer")) as origin, wire(origin.urls[0]) as link:
        link.drips_from = drips_from
        with pytest.raises(TimeoutError, match=f"did not come from .*{there}"):
            async with asyncio.timeout(5):
                await pulled(order(link.url, deadline_s=0.2), tmp_path / "elastic")


async def test_the_deadline_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SHARD_WAIT_S", 0.05)
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    complete = whole(written(tmp_path / "trainer"))
    async with serving() as origin:
        origin.hold(HeldVersion(complete.manifest, complete.folder, [0, 1, 2]))
        with pytest.raises(TimeoutError, match=r"[0-3] of 8 shards are there"):
            await pulled(order(origin.urls[0], deadline_s=0.3), tmp_path / "elastic")


async def test_a_second_attempt_fetches_what_is_missing(tmp_path: Path) -> None:
    weights = written(tmp_path / "trainer")
    async with serving(weights) as origin, wire(origin.urls[0]) as link:
        got = await pulled(order(origin.urls[0]), tmp_path / "elastic")
        with open(got.path, "r+b") as file:
            file.seek(5 * SHARD + 7)
            file.write(b"other")
        assert same(await pulled(order(link.url), tmp_path / "elastic"), weights)
        assert ranges(link.heads) == [5 * SHARD]


async def test_a_shard_that_comes_wrong_is_fetched_once_more(tmp_path: Path) -> None:
    weights = written(tmp_path / "trainer")
    async with serving(weights) as origin, wire(origin.urls[0]) as link:
        link.flip_at = 3 * SHARD
        assert same(await pulled(order(link.url), tmp_path / "elastic"), weights)
        starts = ranges(link.heads)
        assert len(starts) == 9
        assert len(set(starts)) == 8


async def test_a_shard_that_comes_wrong_twice_is_refused(tmp_path: Path) -> None:
    weights = written(tmp_path / "trainer")
    async with serving(weights) as origin:
        with open(weights.path, "r+b") as file:
            file.write(b"other")
        with pytest.raises(WeightsRefused, match=r"must have BLAKE3 .*, they came twice with"):
            await pulled(order(origin.urls[0]), tmp_path / "elastic")


async def test_without_the_token_a_pull_ends_at_once(tmp_path: Path) -> None:
    async with serving(written(tmp_path / "trainer")) as origin:
        with pytest.raises(WeightsRefused, match="401"):
            await pulled(order(origin.urls[0], token="another"), tmp_path / "elastic")
    assert not (tmp_path / "elastic").exists()


async def test_a_version_that_goes_away_meanwhile_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONNECTIONS", 1)
    first = whole(written(tmp_path / "trainer"))
    partial = HeldVersion(first.manifest, first.folder, range(4))
    async with serving() as origin:
        origin.hold(partial)
        coming = asyncio.create_task(pulled(order(origin.urls[0]), tmp_path / "elastic"))
        await asyncio.wait([coming], timeout=0.2)
        origin.hold(whole(written(tmp_path / "trainer", 8, 0.1)))
        origin.hold(whole(written(tmp_path / "trainer", 9, 0.1)))
        partial.mark(4)
        with pytest.raises(WeightsRefused, match="410: version 7 is gone, 8 and 9 are kept"):
            await coming


async def test_a_full_disk_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr(client.shutil, "disk_usage", lambda folder: Usage)
    async with serving(written(tmp_path / "trainer")) as origin:
        with pytest.raises(WeightsRefused, match="make room, or pull into another folder"):
            await pulled(order(origin.urls[0]), tmp_path / "elastic")


async def test_four_elastic_workers_take_a_version_from_the_trainer_once(tmp_path: Path) -> None:
    weights = written(tmp_path / "trainer", num_shards=20)
    async with (
        serving(weights) as origin,
        wire(origin.urls[0]) as link,
        elastic_worker(tmp_path / "a") as a,
        elastic_worker(tmp_path / "b") as b,
        elastic_worker(tmp_path / "c") as c,
        elastic_worker(tmp_path / "d") as d,
    ):
        asked = [order(link.url, receiver=name) for name in "abcd"]
        pulls = (held.pull(told) for held, told in zip((a, b, c, d), asked, strict=True))
        got = await asyncio.gather(*pulls)
        assert all(same(reference, weights) for reference in got)
    assert link.num_bytes < 1.5 * 20 * SHARD  # the version, four manifests, and what is said


async def test_a_peer_that_dies_in_the_middle_is_replaced_by_the_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "END_S", 0.05)
    weights = written(tmp_path / "trainer")
    complete = whole(weights)
    async with serving(weights) as origin, serving() as peer:
        half = HeldVersion(complete.manifest, complete.folder, range(4))
        peer.hold(half)
        origin._held["7"].fan_out.source("peer", peer.urls[0])  # it pulls, so that others go there
        coming = asyncio.create_task(pulled(order(origin.urls[0]), tmp_path / "elastic"))
        await asyncio.wait([coming], timeout=0.3)
        assert not coming.done()
        await peer.close()
        assert same(await coming, weights)


async def test_a_peer_that_lies_is_found_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = written(tmp_path / "trainer")
    other = written(tmp_path / "liar", version=8)
    Path(other.path).rename(tmp_path / "liar" / "00007.safetensors")
    manifest = whole(weights).manifest
    async with serving(weights) as origin, serving() as liar:
        liar.hold(HeldVersion(manifest, tmp_path / "liar", range(8)))
        origin._held["7"].fan_out.source("liar", liar.urls[0])
        got = await pulled(order(origin.urls[0]), tmp_path / "elastic")
        assert same(got, weights)
    assert f"gave up peer={liar.urls[0]} version=7: its bytes of" in caplog.text


async def test_an_elastic_worker_keeps_two_versions_and_the_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    async with serving() as origin, elastic_worker(tmp_path / "elastic") as kept:
        await origin.publish_model(tmp_path / "model")
        await kept.pull(order(origin.urls[0], name="model"))
        for version in (8, 9, 10):
            origin.hold(whole(written(tmp_path / "trainer", version, 0.5)))
            got = await kept.pull(order(origin.urls[0], name=str(version)))
        assert sorted(path.name for path in (tmp_path / "elastic").iterdir()) == [
            "10",
            "9",
            "model",
        ]
        verify(whole(written(tmp_path / "trainer", 10, 0.5)).manifest, Path(got.path).parent)
    assert not (tmp_path / "elastic").exists()


def stepped(folder: Path, weights: WeightsRef, version: int) -> WeightsRef:
    """The next version: a few bytes are others."""
    content = bytearray(Path(weights.path).read_bytes())
    content[:: SHARD // 4] = bytes(len(content[:: SHARD // 4]))
    path = folder / f"{version:05d}.safetensors"
    path.write_bytes(content)
    return WeightsRef(version=version, path=str(path), digest=f"digest-{version}")


@pytest.mark.parametrize("deltas", [True, False])
async def test_the_next_version_comes_as_a_difference_where_the_config_says_so(
    tmp_path: Path, deltas: bool
) -> None:
    first = written(tmp_path / "trainer")
    second = stepped(tmp_path / "trainer", first, 8)
    async with (
        serving(first, second, deltas=deltas) as origin,
        wire(origin.urls[0]) as link,
        elastic_worker(tmp_path / "elastic") as receiver,
    ):
        await receiver.pull(order(origin.urls[0], name="7"))
        assert same(await receiver.pull(order(link.url, name="8")), second)
    assert (link.num_bytes < 8 * SHARD / 10) is deltas


async def test_a_difference_to_other_weights_is_found_out(tmp_path: Path) -> None:
    first = written(tmp_path / "trainer")
    second = stepped(tmp_path / "trainer", first, 8)
    async with (
        serving(first, second, deltas=True) as origin,
        elastic_worker(tmp_path / "elastic") as receiver,
    ):
        got = await receiver.pull(order(origin.urls[0], name="7"))
        Path(got.path).write_bytes(bytes(8 * SHARD))
        assert same(await receiver.pull(order(origin.urls[0], name="8")), second)


@given(st.binary(max_size=300), st.integers(0, 255))
def test_a_difference_makes_the_new_bytes_of_the_old_ones(old: bytes, change: int) -> None:
    new = bytes(byte ^ (change if place % 3 else 0) for place, byte in enumerate(old))
    assert decode_delta(encode_delta(new, old), old) == new


@pytest.mark.parametrize("sent", [b"", b"no zstd", encode_delta(bytes(50), bytes(50))])
def test_what_is_no_difference_to_the_old_bytes_is_refused(sent: bytes) -> None:
    with pytest.raises(ValueError, match="must be zstd of 40 bytes"):
        decode_delta(sent, bytes(40))
