"""A weight version as it crosses a host border: files in byte ranges, each with its BLAKE3.

    WeightsRef or model folder ── described ──▶ Manifest (JSON) ── verified ──▶ the same bytes there

A version never changes, so that a range may come from anybody: the manifest says what it must be.
What lies in the files stays as it was published (bf16, tied tensors once). BLAKE3, because a peer
that lies can meet the fingerprints of `weights`, which detect accidents, and SHA-256 takes four
times as long, more than receiving does; vLLM brings it along. Leaves out how bytes travel
(tasks/weights).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from blake3 import blake3
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, TypeAdapter

from artifacts.records import WeightsRef

# a peer passes a shard on when it has all of it: with n shards a chain of four takes 3/n longer
AIM_SHARDS = 128
LEAST_SHARD_BYTES = 1 << 20  # each is asked for by itself, which takes a millisecond
MOST_SHARD_BYTES = 16 << 20  # and fetched again as a whole when it came wrong
MODEL = "model"  # the name of the folder that the run started from
_BLOCK_BYTES = 1 << 20  # hashed at a time; stays in a core's cache


def _inside(path: str) -> str:
    """The path, which must stay in the folder that it is relative to."""
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
    """A range of a file."""

    file: RelativePath  # relative to the version's folder, parts separated by "/"
    offset: NonNegativeInt  # bytes
    size: PositiveInt  # bytes
    blake3: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # of these bytes, hexadecimal

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that a receiver must know to tell whether it has a version."""

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
        """Of all files."""
        return sum(self.files.values())

    def resembles(self, other: Manifest) -> bool:
        """Whether each shard of this version can be told as its difference to the other's."""
        ours, theirs = ([(s.offset, s.size) for s in m.shards] for m in (self, other))
        return ours == theirs

    def local(self, folder: Path) -> WeightsRef:
        """The reference to this version in a folder that holds its files: to its one file, or to
        the folder if it is the model's."""
        path = folder if self.name == MODEL else folder / next(iter(self.files))
        return WeightsRef(version=self.version, path=str(path), digest=self.digest)


_MANIFEST = TypeAdapter(Manifest)


def to_json(manifest: Manifest) -> bytes:
    """The manifest as it is sent."""
    return _MANIFEST.dump_json(manifest)


def from_json(sent: bytes) -> Manifest:
    """The manifest that was sent. Raises ValueError on anything else."""
    return _MANIFEST.validate_json(sent)


def describe(weights: WeightsRef, shard_bytes: int | None = None) -> Manifest:
    """The manifest of a published version. Reads and hashes the whole file. shard_bytes: what suits
    its size if not given."""
    path = Path(weights.path)
    return _described(
        path.parent,
        [path.name],
        shard_bytes,
        name=str(weights.version),
        version=weights.version,
        digest=weights.digest,
    )


def describe_model(folder: Path) -> Manifest:
    """The manifest of the model's folder: configuration, tokenizer and first weights. Leaves out
    hidden files; a link counts as what it leads to."""
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    files = [
        path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)
    ]
    if not files:
        raise ValueError(f"a model's folder must hold its files, found none in {folder}; check it")
    return _described(folder, files, None, name=MODEL, version=0, digest="")


def _described(
    folder: Path, files: list[str], shard_bytes: int | None, *, name: str, version: int, digest: str
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
    return Manifest(name=name, version=version, digest=digest, files=sizes, shards=shards)


def suitable_shard_bytes(num_bytes: int) -> int:
    """The size of a shard of a version of this size: whole blocks, within the bounds."""
    step = -(-num_bytes // (AIM_SHARDS * _BLOCK_BYTES)) * _BLOCK_BYTES
    return max(LEAST_SHARD_BYTES, min(MOST_SHARD_BYTES, step))


def right_shards(manifest: Manifest, folder: Path) -> frozenset[int]:
    """The indices of the shards whose bytes are there as the manifest has them."""

    return frozenset(
        index
        for index, shard in enumerate(manifest.shards)
        if _blake3(folder / shard.file, shard.offset, shard.size) == shard.blake3
    )


def verify(manifest: Manifest, folder: Path) -> None:
    """Raises ValueError with the first byte range that is not as the manifest has it."""
    wrong = set(range(len(manifest.shards))) - right_shards(manifest, folder)
    if wrong:
        shard = manifest.shards[min(wrong)]
        raise ValueError(
            f"{shard.file} of version {manifest.name} must have BLAKE3 {shard.blake3} in bytes"
            f" {shard.offset} to {shard.end}, it has not; shards that differ: {len(wrong)}; pull"
            " the version again"
        )


def read_shard(folder: Path, shard: Shard) -> bytes:
    """Its bytes, as they are there."""
    with open(folder / shard.file, "rb") as file:
        file.seek(shard.offset)
        return file.read(shard.size)


def _blake3(path: Path, offset: int, size: int) -> str:
    """Of the bytes that are there, which may be fewer or none."""
    total = blake3()
    if path.is_file():
        for block in _blocks(path, offset, size):
            total.update(block)
    return total.hexdigest()


def _blocks(path: Path, offset: int, size: int) -> Iterator[memoryview]:
    """The range in pieces, each valid until the next is asked for."""
    block = memoryview(bytearray(min(size, _BLOCK_BYTES)))
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while size and (got := file.readinto(block[:size])):
            size -= got
            yield block[:got]
