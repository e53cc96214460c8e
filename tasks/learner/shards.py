"""The learner's checkpoint: one safetensors file per rank with its slice of masters and moments,
restored bit by bit.

Files carry the range of the flat layout that they hold, so a learner of another number of ranks
reads the same checkpoint. Every rank must see all files. Leaves out the commit: the step's manifest
says which checkpoints count.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tasks.learner.flat_parameters import FlatParameters
from tasks.learner.ranks import Ranks
from tasks.learner.sharding import ShardedAdamW

_NAMES = ("masters", "mean", "square")


def save_shard(
    path: str, step: int, optimizer: ShardedAdamW, flat: FlatParameters, ranks: Ranks
) -> None:
    """Write this rank's file into the directory `path`, aside first."""
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"shard-{ranks.rank:05d}-of-{ranks.world_size:05d}.safetensors"
    header = {
        "step": step,
        "num_updates": optimizer.num_updates,
        "start": optimizer.start,
        "layout": _layout(flat),
    }
    aside = target.with_name(f".{target.name}.{os.getpid()}.aside")
    tensors = {name: getattr(optimizer, name).cpu() for name in _NAMES}
    save_file(tensors, aside, metadata={"header": json.dumps(header)})
    os.replace(aside, target)


def load_shards(path: str, optimizer: ShardedAdamW, flat: FlatParameters) -> int:
    """Restore slice and values from all shards of the newest complete set; returns the step. Not
    collective."""
    for file_path in _complete_set(Path(path)):
        with safe_open(file_path, framework="pt") as file:
            header = json.loads(file.metadata()["header"])
            if header["layout"] != _layout(flat):
                raise ValueError(
                    f"a checkpoint must be of the same model, {file_path} has other parameters;"
                    " load the right one"
                )
            for name in _NAMES:
                _copy_overlap(
                    getattr(optimizer, name),
                    optimizer.start,
                    file.get_tensor(name),
                    header["start"],
                )
            masters = file.get_tensor("masters").to(
                device=flat.values.device, dtype=flat.values.dtype
            )
            _copy_overlap(flat.values, 0, masters, header["start"])
            optimizer.num_updates = header["num_updates"]
    return int(header["step"])


def _complete_set(directory: Path) -> list[Path]:
    """The shards of one save. Several sets side by side, or a missing shard, are errors."""
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


def _layout(flat: FlatParameters) -> list[list[object]]:
    return [[slot.name, list(slot.shape), slot.start] for slot in flat.slots]


def _copy_overlap(target: Tensor, target_start: int, source: Tensor, source_start: int) -> None:
    """Copy where two ranges of the flat layout meet; padding beyond the last parameter may be
    missing on either side."""
    start = max(target_start, source_start)
    end = min(target_start + target.numel(), source_start + source.numel())
    if start < end:
        with torch.no_grad():
            target[start - target_start : end - target_start].copy_(
                source[start - source_start : end - source_start]
            )
