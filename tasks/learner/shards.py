"""The learner's checkpoint: one safetensors file per rank with the masters and moments of the
pieces that the rank owns, restored bit by bit.

    masters/model.norm.weight, mean/..., square/...: consecutive elements of the parameter
    header: the step, every parameter's shape, and where these elements begin

So another number of ranks, or another placement of parameters, can read it; every rank must see all
files. Written a piece after the other: the host never holds more than one chunk of what lies on a
GPU. Leaves out the commit: the step's manifest says which checkpoints count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from artifacts.checkpoint import EARLIER
from artifacts.store import explained
from tasks.learner.optimizer import ShardedAdamW, Updater

Shapes = Mapping[str, torch.Size]


def save_shard(directory: Path, step: int, updater: Updater) -> None:
    """Write this rank's file into the directory: aside, then renamed. Masters and moments must stay
    as they are meanwhile. Raises StoreError."""
    optimizer, ranks = updater.optimizer, updater.ranks
    target = directory / f"shard-{ranks.rank:05d}-of-{ranks.world_size:05d}.safetensors"
    header = {
        "step": step,
        "num_updates": optimizer.num_updates,
        "shapes": _listed(updater.parameters.shapes),
        "starts": {piece.name: piece.start for piece in optimizer.pieces},
    }
    aside = target.with_name(f".{target.name}.{os.getpid()}.aside")
    tensors = {key: tensor for key, _, tensor in _kept(optimizer)}
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    with explained(str(target), num_bytes, setting="artifact_root or keep.weights_dir"):
        directory.mkdir(parents=True, exist_ok=True)
        _write(aside, tensors, {"header": json.dumps(header)})
        os.replace(aside, target)


def _write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write fp32 tensors of one dimension as a safetensors file, byte by byte as the library does,
    which holds all of them in memory."""
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for key in sorted(tensors):
        begin, end = end, end + tensors[key].nbytes
        header[key] = {
            "dtype": "F32",
            "shape": list(tensors[key].shape),
            "data_offsets": [begin, end],
        }
    described = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    described += b" " * (-len(described) % 8)
    with open(path, "wb") as file:
        file.write(len(described).to_bytes(8, "little") + described)
        for key in sorted(tensors):
            for chunk in on_host(tensors[key]):
                file.write(chunk.numpy().data)


def on_host(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a flat tensor in chunks in host memory, each valid until the next is taken. A GPU's are
    copied through pinned memory, in a stream of their own beside what it computes."""
    if tensor.device.type == "cpu":
        yield tensor
        return
    stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
    buffer = torch.empty(min(_CHUNK, tensor.numel()), dtype=tensor.dtype, pin_memory=True)
    for part in torch.split(tensor, _CHUNK):
        with torch.cuda.stream(stream):
            buffer[: len(part)].copy_(part, non_blocking=True)
        stream.synchronize()
        yield buffer[: len(part)]


_CHUNK = 1 << 23  # elements


def load_shards(directory: Path, updater: Updater) -> int:
    """Restore the weights and this rank's pieces bit by bit from the shards in the directory, and
    drop the sums of gradients; returns the shards' step. Raises ValueError for shards that are
    missing, damaged or of another model. Collective."""
    optimizer = updater.optimizer
    updater.parameters.discard()
    for file_path in _complete_set(directory):
        with _named(file_path), safe_open(file_path, framework="pt") as file:
            header = json.loads(file.metadata()["header"])
            _check_header(header, file_path, updater.parameters.shapes)
            starts = header["starts"]
            for key, place, tensor in _kept(optimizer):
                piece = optimizer.pieces[place]
                if piece.name in starts:
                    _copy_overlap(tensor, piece.start, file.get_tensor(key), starts[piece.name])
            optimizer.num_updates = header["num_updates"]
    updater.parameters.publish()
    return int(header["step"])


@contextmanager
def _named(file_path: Path) -> Iterator[None]:
    """Turn a reader's error at a shard that no digest verified into one that names the file."""
    try:
        yield
    except (SafetensorError, json.JSONDecodeError, LookupError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"a shard of a checkpoint must be whole, {file_path} is not ({error}); {EARLIER}"
        ) from error


def _kept(optimizer: ShardedAdamW) -> Iterator[tuple[str, int, Tensor]]:
    """The tensors of a checkpoint: (name in the file, index of the piece, tensor)."""
    for place, piece in enumerate(optimizer.pieces):
        yield f"masters/{piece.name}", place, piece.masters
        yield f"mean/{piece.name}", place, optimizer.mean[place]
        yield f"square/{piece.name}", place, optimizer.square[place]


def _complete_set(directory: Path) -> list[Path]:
    """The shards of one save, in order. Raises ValueError for several sets, or a gap."""
    found = sorted(directory.glob("shard-*-of-*.safetensors"))
    expected = int(found[0].stem.rsplit("-", 1)[1]) if found else 1
    if [path.name for path in found] != [
        f"shard-{rank:05d}-of-{expected:05d}.safetensors" for rank in range(expected)
    ]:
        raise ValueError(
            f"a checkpoint must hold every rank's shard of one save, {directory} holds"
            f" {[path.name for path in found]}; use a directory per step, and one that the manifest"
            " names"
        )
    return found


def _check_header(header: Mapping[str, object], file_path: Path, shapes: Shapes) -> None:
    if "shapes" not in header:
        raise ValueError(
            f"a checkpoint must tell the shapes of its parameters, {file_path} does not: another"
            " version of Rollflow wrote it; resume the run with that version, or begin a new one"
        )
    if header["shapes"] != _listed(shapes):
        raise ValueError(
            f"a checkpoint must be of the same model, {file_path} has other parameters; load the"
            " right one"
        )


def _listed(shapes: Shapes) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in shapes.items()}


def _copy_overlap(target: Tensor, target_start: int, source: Tensor, source_start: int) -> None:
    """Copy the elements that both ranges of one parameter cover."""
    start = max(target_start, source_start)
    end = min(target_start + target.numel(), source_start + source.numel())
    if start < end:
        with torch.no_grad():
            target[start - target_start : end - target_start].copy_(
                source[start - source_start : end - source_start]
            )
