"""What a receiver is told about a version, and what it checks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from blake3 import blake3

from artifacts.records import WeightsRef
from artifacts.weight_shards import (
    MODEL,
    describe,
    describe_model,
    from_json,
    right_shards,
    suitable_shard_bytes,
    to_json,
    verify,
)
from artifacts.weights import write_weights


def version(folder: Path, num_bytes: int = 25) -> WeightsRef:
    path = folder / "00003.safetensors"
    path.write_bytes(bytes(range(num_bytes)))
    return WeightsRef(version=3, path=str(path), digest="d")


def test_shards_cover_a_version_and_name_their_bytes(tmp_path: Path) -> None:
    manifest = describe(version(tmp_path), shard_bytes=10)
    assert [(shard.offset, shard.size) for shard in manifest.shards] == [(0, 10), (10, 10), (20, 5)]
    assert manifest.shards[1].blake3 == blake3(bytes(range(10, 20))).hexdigest()
    assert (manifest.name, manifest.version, manifest.num_bytes) == ("3", 3, 25)
    assert manifest.local(tmp_path) == version(tmp_path)
    assert from_json(to_json(manifest)) == manifest
    verify(manifest, tmp_path)


@pytest.mark.parametrize(("mib", "shard_mib"), [(0.1, 1), (64, 1), (270, 3), (16_000, 16)])
def test_large_versions_have_larger_shards(mib: float, shard_mib: int) -> None:
    assert suitable_shard_bytes(int(mib * (1 << 20))) == shard_mib << 20


def test_a_changed_byte_is_found_and_its_range_named(tmp_path: Path) -> None:
    weights = version(tmp_path)
    manifest = describe(weights, shard_bytes=10)
    content = bytearray(Path(weights.path).read_bytes())
    content[13] ^= 1
    Path(weights.path).write_bytes(content)
    assert right_shards(manifest, tmp_path) == {0, 2}
    with pytest.raises(ValueError, match="in bytes 10 to 20, it has not; shards that differ: 1"):
        verify(manifest, tmp_path)


def test_a_missing_or_short_file_has_wrong_shards(tmp_path: Path) -> None:
    weights = version(tmp_path)
    manifest = describe(weights, shard_bytes=10)
    Path(weights.path).write_bytes(bytes(range(12)))
    assert right_shards(manifest, tmp_path) == {0}
    Path(weights.path).unlink()
    assert right_shards(manifest, tmp_path) == set()


def test_tied_tensors_are_sent_once_and_as_bf16(tmp_path: Path) -> None:
    tied = torch.ones(1000, 100)
    weights = write_weights([("head", tied), ("embed", tied)], tmp_path / "1.safetensors", 1)
    assert 200_000 < describe(weights).num_bytes < 201_000


def test_a_model_is_its_files_without_hidden_ones(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"weights")
    folder = tmp_path / "snapshot"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").touch()
    (folder / "model.safetensors").symlink_to(blob)
    (folder / "tokenizer" / "merges.txt").write_text("a b")
    (folder / "empty").touch()
    manifest = describe_model(folder)
    assert manifest.files == {"empty": 0, "model.safetensors": 7, "tokenizer/merges.txt": 3}
    assert manifest.name == MODEL
    assert manifest.local(folder).path == str(folder)


def test_a_model_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found none in"):
        describe_model(tmp_path)


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "a/../../b", "a//b", "./a", "", ".", "a\\b", "a\0b"]
)
def test_no_manifest_reaches_out_of_its_folder(tmp_path: Path, path: str) -> None:
    sent = json.loads(to_json(describe(version(tmp_path))))
    sent["files"] = {path: sent["shards"][0]["size"]}
    sent["shards"][0]["file"] = path
    with pytest.raises(ValueError, match="must lie in its folder"):
        from_json(json.dumps(sent).encode())


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_manifest_with_a_gap_is_refused(tmp_path: Path, left_out: int) -> None:
    sent = json.loads(to_json(describe(version(tmp_path), shard_bytes=10)))
    del sent["shards"][left_out]
    with pytest.raises(ValueError, match="refuse this manifest"):
        from_json(json.dumps(sent).encode())


@pytest.mark.parametrize(
    "wrong", [b"", b"{}", b"null", pickle.dumps({"name": "3"}), b'{"name": "3", "version": -1}']
)
def test_anything_but_a_manifest_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  pydantic's
        from_json(wrong)
