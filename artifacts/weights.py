"""Writes, reads and compares the file of a weight version: bf16 safetensors, written aside and
renamed; tied weights are stored once. Leaves out where a run stores its versions."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from artifacts.records import WeightsRef
from artifacts.store import explained

_BF16_BYTES = 2
_ALIGNMENT = 8  # of the first tensor in a safetensors file, bytes
_WORDS_PER_ROW = 1 << 14  # 64-bit words hashed with one table of weights
# rows hashed together: on a CPU one stays in its cache, on a GPU they are 128 MiB
_ROWS_AT_ONCE = {"cpu": 1, "cuda": 1 << 10}
_MASK = (1 << 64) - 1


def write_weights(
    tensors: Iterable[tuple[str, Tensor]], path: str | os.PathLike[str], version: int
) -> WeightsRef:
    """Write the tensors as bf16 and return the file's reference. The file appears whole or not at
    all. Tensors that share storage are stored under their first name. Only one process at a time
    may write to a path. Raises ValueError for a name that comes twice, StoreError for the disk."""
    kept: dict[str, Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name, tensor in tensors:
        if name in kept:
            raise ValueError(
                f"tensor names must be unique, got {name!r} twice; give every tensor its checkpoint"
                " name"
            )
        identity = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and identity in seen:
            continue
        seen.add(identity)
        kept[name] = tensor
    shapes = {name: tensor.shape for name, tensor in kept.items()}
    return stream_weights(kept.items(), shapes, path, version)


def reuse(spare: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Make the next `write_weights` to `path` overwrite the pages of the file `spare`, which must
    have no readers any more: new pages must be allocated and cleared first, which takes longer than
    writing. Does nothing if `spare` does not exist."""
    with suppress(FileNotFoundError):
        os.replace(spare, _aside(Path(path)))


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.aside")


def stream_weights(
    parts: Iterable[tuple[str, Tensor]],
    shapes: Mapping[str, Sequence[int]],
    path: str | os.PathLike[str],
    version: int,
    setting: str = "keep.weights_dir",
) -> WeightsRef:
    """As `write_weights`, with one part in memory at a time, which is valid until the next is
    taken. parts: the tensors of these shapes in any order, whole or in parts along the first
    dimension, one after the other. setting: as for `explained`."""
    prints, target = Fingerprints(shapes), Path(path)

    def rounded() -> Iterator[tuple[str, Tensor]]:
        for name, part in parts:
            held = part.detach().to(torch.bfloat16)
            prints.add(name, held)  # where it lies: a GPU is a hundred times as fast
            yield name, held.to(device="cpu").contiguous()

    num_bytes = sum(_BF16_BYTES * math.prod(shape) for shape in shapes.values())
    with explained(str(target), num_bytes, setting):
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_over(_aside(target), shapes, rounded(), version)
        os.replace(_aside(target), target)
    return WeightsRef(version=version, path=str(target), digest=digest_of(prints.found, shapes))


def _write_over(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    parts: Iterable[tuple[str, Tensor]],
    version: int,
) -> None:
    """Write a safetensors file at `path`, into the pages of a file that is already there, which the
    library cannot. parts: as for `stream_weights`; bf16, contiguous, on the CPU."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "version": str(version)}}
    places: dict[str, int] = {}  # in the file's data, of the next part of each tensor
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + _BF16_BYTES * math.prod(shape)
        places[name] = begin
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    described = json.dumps(header).encode()
    described += b" " * (-len(described) % _ALIGNMENT)
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.write(len(described).to_bytes(8, "little") + described)
        begin, written = file.tell(), 0
        for name, part in parts:
            file.seek(begin + places[name])
            # numpy's view would fix the size of a storage that sharded parameters free
            data = (ctypes.c_char * part.nbytes).from_address(part.data_ptr())
            places[name] += file.write(data)
            written += part.nbytes
        assert written == end, f"{end - written} bytes of {path} are missing"

        file.truncate(begin + end)


def stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a weight file, by name, in the order of `read_weights`."""
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def read_weights(path: str | os.PathLike[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a weight file with their names, one at a time, sorted by name. Raises
    ValueError if the file is missing or damaged."""
    if not Path(path).is_file():
        raise ValueError(
            f"weights must be a safetensors file, found none at {path}; check the store or replay"
            " the step"
        )
    try:
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise ValueError(
            f"weights must be a whole safetensors file, {path} is not ({error}); resume the run: it"
            " publishes them again"
        ) from error


def digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The digest of a weight version with these bf16 tensors."""
    prints: dict[str, int] = {}
    shapes: dict[str, torch.Size] = {}
    for name, tensor in tensors:
        prints[name], shapes[name] = fingerprint(tensor), tensor.shape
    return digest_of(prints, shapes)


def digest_of(prints: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> str:
    """blake2b over names, shapes and fingerprints of tensors, independent of their order. It takes
    a fifth of the time of hashing the tensors' bytes; every publication waits for it."""
    total = hashlib.blake2b(digest_size=32)
    for name in sorted(prints):
        total.update(f"{name}\0{tuple(shapes[name])}\0{prints[name]}\0".encode())
    return total.hexdigest()


def fingerprint(tensor: Tensor) -> int:
    """Checksum (64 bits) of the tensor's bf16 bytes and shape, the same on every device and for
    every memory layout: the sum over all 64-bit words of the word times an odd weight of its
    position, modulo 2**64. One changed word always changes it, moved words all but surely do. It
    detects accidents; it is no signature."""
    prints = Fingerprints({"": tensor.shape})
    prints.add("", tensor)
    return prints.found[""]


class Fingerprints:
    """The fingerprints of tensors that come in parts, one after the other."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self.found = {name: _of_shape(shape) for name, shape in shapes.items()}
        self._ends = dict.fromkeys(shapes, 0)  # elements that came, by name

    def add(self, name: str, part: Tensor) -> None:
        """Take the next elements of this tensor, all of them or some."""
        start = self._ends[name]
        self._ends[name] += part.numel()
        first_row, before = divmod(start, 4 * _WORDS_PER_ROW)
        flat = part.detach().to(torch.bfloat16).contiguous().reshape(-1)
        padding = (before, -(before + flat.numel()) % 4)
        if any(padding):  # zeros add nothing, not even within a word
            flat = torch.nn.functional.pad(flat, padding)
        if flat.storage_offset() % 4:
            flat = flat.clone()
        added = weighted_sum(flat.view(torch.int64), _ROWS_AT_ONCE[part.device.type], first_row)
        self.found[name] = (self.found[name] + added) & _MASK


def _of_shape(shape: Sequence[int]) -> int:
    """Where the fingerprint of a tensor of this shape begins."""
    total = 0x9E3779B97F4A7C15 * (-(-math.prod(shape) // 4) * 4 + 1)
    for size in shape:
        total = _mix(total ^ size)
    return total & _MASK


def weighted_sum(words: Tensor, rows_at_once: int, first_row: int = 0) -> int:
    """The sum modulo 2**64 of int64 words (n,) times their weights, computed where the words lie
    and read once, whatever n is: reading waits for everything that a GPU has to do. first_row: the
    place of the first row among those of its tensor."""
    num_rows, num_whole = -(-words.numel() // _WORDS_PER_ROW), words.numel() // _WORDS_PER_ROW
    if not num_rows:
        return 0
    weights, sums = _row_weights(words.device), words.new_empty(num_rows)
    whole = words[: num_whole * _WORDS_PER_ROW].view(num_whole, _WORDS_PER_ROW)
    for first in range(0, num_whole, rows_at_once):
        part = whole[first : first + rows_at_once]
        torch.sum(part * weights, 1, out=sums[first : first + len(part)])
    if num_whole < num_rows:
        rest = words[num_whole * _WORDS_PER_ROW :]
        sums[-1] = (rest * weights[: rest.numel()]).sum()
    of_rows = _weights_of_rows(words.device, first_row + num_rows)[first_row:]
    return int((sums * of_rows).sum())


def fingerprints(path: str | os.PathLike[str]) -> dict[str, int]:
    """The fingerprint of every tensor in a weight file, by tensor name."""
    return {name: fingerprint(tensor) for name, tensor in read_weights(path)}


def _weights_of_rows(device: torch.device, number: int) -> Tensor:
    """Odd weights of the first rows, shape (number,), wrapped to int64."""
    enough = 1 << max(10, (number - 1).bit_length())
    return _odd_weights(device, 1, enough)[:number]


def _mix(value: int) -> int:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _row_weights(device: torch.device) -> Tensor:
    """Odd weights of the positions of words in a row, shape (_WORDS_PER_ROW,)."""
    return _odd_weights(device, 0, _WORDS_PER_ROW)


@cache
def _odd_weights(device: torch.device, first: int, number: int) -> Tensor:
    """Odd pseudo-random 64-bit weights of consecutive positions, shape (number,), wrapped to
    int64."""
    signed = [
        ((_mix(first + index) | 1) + (1 << 63)) % (1 << 64) - (1 << 63) for index in range(number)
    ]
    return torch.tensor(signed, dtype=torch.int64, device=device)
