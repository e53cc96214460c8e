"""The form in which a weight version is sent between machines: byte ranges of its files (shards),
each with its BLAKE3.

    WeightsRef or model folder ── described ──▶ Manifest (JSON) ── verified ──▶ the same bytes there
    new XOR old ── low bytes of all bf16 values, then high bytes ── zstd ──▶ a few per cent

A version never changes, so that a shard may come from any peer. The hash is BLAKE3: a lying peer
could forge the fingerprints of `weights`, and SHA-256 takes longer than the transfer itself. From
one version to the next most high bytes (sign, exponent) stay and low bytes change little, so that
they compress better apart (docs/elastic.md has figures).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np
import pyarrow as pa
from blake3 import blake3
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, TypeAdapter

from artifacts.records import WeightsRef

# a peer forwards a shard once it is complete: with n shards a chain of four takes 3/n longer
AIM_SHARDS = 128
MIN_SHARD_BYTES = 1 << 20  # each is a request of its own, which takes a millisecond
MAX_SHARD_BYTES = 16 << 20  # a shard that came wrong is fetched again as a whole
MODEL = "model"  # the name of the folder that the run started from
_BLOCK_BYTES = 1 << 20  # hashed at a time; stays in a core's cache


def _inside(path: str) -> str:
    """Return a relative path unchanged; ValueError if it leaves the folder it is relative to."""
    parts = PurePosixPath(path)
    is_plain = bool(parts.name) and str(parts) == path and "\\" not in path and "\0" not in path
    if parts.is_absolute() or ".." in parts.parts or not is_plain:
        raise ValueError(
            f"a file of a version must lie in its folder, got {path!r}; refuse this manifest"
        )
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A byte range of a file, with its hash."""

    file: RelativePath  # relative to the version's folder, parts separated by "/"
    offset: NonNegativeInt  # bytes
    size: PositiveInt  # bytes
    blake3: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # of these bytes, hexadecimal

    @property
    def end(self) -> int:
        """Offset of the first byte after the range."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files and shards of a weight version; a receiver checks its bytes against them."""

    name: str  # the version's number, or MODEL
    version: NonNegativeInt  # as in WeightsRef; 0 for the model's folder
    digest: str  # as in WeightsRef; empty for the model's folder
    files: dict[RelativePath, NonNegativeInt]  # bytes of each file
    shards: tuple[Shard, ...]  # of every file from its first byte to its last, in order

    def __post_init__(self) -> None:
        ends = dict.fromkeys(self.files, 0)
        for shard in self.shards:
            if ends.get(shard.file) != shard.offset:
                raise ValueError(
                    f"shards must follow each other, {shard.file} has a gap before byte"
                    f" {shard.offset}; refuse this manifest"
                )
            ends[shard.file] = shard.end
        if ends != self.files:
            raise ValueError("shards must reach the end of every file; refuse this manifest")

    @property
    def num_bytes(self) -> int:
        """Total size of all files in bytes."""
        return sum(self.files.values())

    def resembles(self, other: Manifest) -> bool:
        """True if this version's shards can be sent as differences to `other`: both versions have
        the same offsets and sizes."""
        ours, theirs = ([(s.offset, s.size) for s in m.shards] for m in (self, other))
        return ours == theirs

    def local(self, folder: Path) -> WeightsRef:
        """A reference to this version in `folder`, which holds its files: to its one file, or to
        the folder if the version is the base model."""
        path = folder if self.name == MODEL else folder / next(iter(self.files))
        return WeightsRef(version=self.version, path=str(path), digest=self.digest)


_MANIFEST = TypeAdapter(Manifest)


def to_json(manifest: Manifest) -> bytes:
    """The manifest's bytes for sending."""
    return _MANIFEST.dump_json(manifest)


def from_json(sent: bytes) -> Manifest:
    """Parse a manifest that was sent. Raises ValueError for anything else."""
    return _MANIFEST.validate_json(sent)


def describe(weights: WeightsRef, shard_bytes: int | None = None) -> Manifest:
    """Make the manifest of a published version; reads and hashes the whole file. shard_bytes: size
    of a shard in bytes, by default `suitable_shard_bytes`."""
    path = Path(weights.path)
    return _described(str(weights.version), weights, path.parent, [path.name], shard_bytes)


def describe_model(folder: Path) -> Manifest:
    """Make the manifest of the base model's folder: configuration, tokenizer and first weights.
    Hidden files are left out and links are followed. Raises ValueError for an empty folder."""
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    files = [
        path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)
    ]
    if not files:
        raise ValueError(f"a model's folder must hold its files, found none in {folder}; check it")
    weights = WeightsRef(version=0, path=str(folder), digest="")
    return _described(MODEL, weights, folder, files, None)


def _described(
    name: str, weights: WeightsRef, folder: Path, files: list[str], shard_bytes: int | None
) -> Manifest:
    sizes = {file: (folder / file).stat().st_size for file in files}
    step = shard_bytes or suitable_shard_bytes(sum(sizes.values()))
    ranges = [
        (file, offset, min(step, size - offset))
        for file, size in sizes.items()
        for offset in range(0, size, step)
    ]
    shards = tuple(
        Shard(file=file, offset=offset, size=size, blake3=_blake3(folder / file, offset, size))
        for file, offset, size in ranges
    )
    version, digest = weights.version, weights.digest
    return Manifest(name=name, version=version, digest=digest, files=sizes, shards=shards)


def suitable_shard_bytes(num_bytes: int) -> int:
    """Shard size in bytes for a version of num_bytes: about AIM_SHARDS shards of whole MiB, from
    MIN_SHARD_BYTES to MAX_SHARD_BYTES."""
    step = -(-num_bytes // (AIM_SHARDS * _BLOCK_BYTES)) * _BLOCK_BYTES
    return max(MIN_SHARD_BYTES, min(MAX_SHARD_BYTES, step))


def right_shards(manifest: Manifest, folder: Path) -> frozenset[int]:
    """The indices of the shards whose bytes in `folder` match the manifest."""
    return frozenset(
        index
        for index, shard in enumerate(manifest.shards)
        if _blake3(folder / shard.file, shard.offset, shard.size) == shard.blake3
    )


def verify(manifest: Manifest, folder: Path) -> None:
    """Check every shard in `folder`. Raises ValueError with the first byte range that differs from
    the manifest."""
    wrong = set(range(len(manifest.shards))) - right_shards(manifest, folder)
    if wrong:
        shard = manifest.shards[min(wrong)]
        raise ValueError(
            f"{shard.file} of version {manifest.name} must have BLAKE3 {shard.blake3} in bytes"
            f" {shard.offset} to {shard.end}, it has not; shards that differ: {len(wrong)}; pull"
            " the version again"
        )


def read_shard(folder: Path, shard: Shard) -> bytes:
    """Read the bytes of a shard from its file in `folder`."""
    with open(folder / shard.file, "rb") as file:
        file.seek(shard.offset)
        return file.read(shard.size)


def _blake3(path: Path, offset: int, size: int) -> str:
    """BLAKE3 of a byte range of a file; of fewer bytes if the file is shorter or missing."""
    total = blake3()
    if not path.is_file():
        return total.hexdigest()
    block = memoryview(bytearray(min(size, _BLOCK_BYTES)))
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while size and (got := file.readinto(block[:size])):
            size -= got
            total.update(block[:got])
    return total.hexdigest()


LEVEL = 1  # higher ones take longer and gain nothing here


def encode_delta(new: bytes, old: bytes) -> bytes:
    """Compress the difference between `new` and `old`, two byte strings of one length;
    `decode_delta` rebuilds `new` from the result and `old`."""
    changed = np.frombuffer(new, np.uint8) ^ np.frombuffer(old, np.uint8)
    planes = np.concatenate((changed[0::2], changed[1::2]))
    sent: bytes = _codec().compress(planes, asbytes=True)
    return sent


def decode_delta(sent: bytes, old: bytes) -> bytes:
    """Rebuild the new bytes from `sent` (of `encode_delta`) and the old bytes of the same length.
    Raises ValueError if `sent` is not a difference of that length."""
    try:
        planes = _codec().decompress(sent, decompressed_size=len(old), asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"a difference must be zstd of {len(old)} bytes: {error}") from error
    changed = np.empty(len(old), np.uint8)
    middle = -(-len(old) // 2)
    changed[0::2] = np.frombuffer(planes, np.uint8)[:middle]
    changed[1::2] = np.frombuffer(planes, np.uint8)[middle:]
    return (changed ^ np.frombuffer(old, np.uint8)).tobytes()


def _codec() -> pa.Codec:
    return pa.Codec("zstd", compression_level=LEVEL)
