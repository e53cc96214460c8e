"""Packed rows on the device that computes them, prepared beside the row before.

    samples of a row ─▶ pack ─▶ arrays ─▶ one copy to the device ─▶ DeviceRow
    └────────── in a thread, while the device computes ─────────┘

Everything that a pass, the loss or the statistics need of a row is known before its first kernel,
so that nothing is read back from the device until the row's report is (`row_report`). Leaves out
which samples share a row (`packing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.learner.head import Predictions, prediction_arrays
from tasks.learner.packing import PackedBatch, SamplePaths, pack_paths
from tasks.learner.pictures import FIRST_PICTURE_ID, NumberedPicture
from tasks.learner.token_loss import Lengths, TokenBatch
from tasks.learner.tree_attention import QUERIES_PER_BLOCK, TreePlan
from tasks.learner.version_sums import version_places

Array = NDArray[Any]  # Any: of integers or floats
_ALIGNMENT = 64  # bytes, of each array in the one that is copied


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPictures:
    """The pictures of a row of N nodes, M of which are tokens of pictures."""

    pictures: tuple[NumberedPicture, ...]  # distinct ones
    nodes: Tensor  # (M,) int64: the nodes of their tokens
    places: Tensor  # (M,) int64: of each among the tokens of all pictures, in their order
    rotary: Tensor  # (3, N) int64: positions by time, row and column, of all nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A packed row of N nodes and P sampled tokens on a device."""

    batch: PackedBatch
    lengths: Lengths  # sampled tokens of each sample
    smallest_id: int  # of all token ids in the row, the targets included
    largest_id: int
    depth: int  # the largest position
    tokens: Tensor  # (N,) int64; 0 where a picture's token is
    positions: Tensor  # (N,) int64
    subtree_ends: Tensor  # (N,) int64
    nodes: Tensor  # (R,) int64: the nodes that predict, ascending
    predictions: Predictions  # of the P tokens by the R nodes
    columns: TokenBatch  # of the P tokens, without a reference
    versions: tuple[int, ...]  # weight versions that sampled its tokens, ascending
    version_places: Tensor  # (P,) int64: the place in `versions` of each token's own
    pictures: RowPictures | None = None
    routes: Tensor | None = None  # (N, width) int16: as `PackedBatch.routes`

    def plan(self) -> TreePlan:
        """A new attention plan. Not kept with the row: on a CPU it holds masks of whole blocks."""
        return TreePlan(self.subtree_ends, self.positions, depth=self.depth)


def row_of(batch: PackedBatch, device: torch.device) -> DeviceRow:
    """Bring a packed row to the device."""
    samples = batch.samples
    lengths = tuple(sample.num_sampled for sample in samples)
    nodes, rows = np.unique(batch.predictors, return_inverse=True)
    predictions, bounds = prediction_arrays(rows, batch.targets)
    versions, places = version_places(span for each in samples for span in each.versions)
    tokens, of_pictures = _without_pictures(batch)
    used = np.concatenate([tokens, batch.targets])
    there = moved(
        {
            "tokens": tokens,
            "positions": batch.positions,
            "subtree_ends": batch.subtree_ends,
            "nodes": nodes,
            "version_places": places,
            "sampling_logp": np.concatenate([_fp32([]), *(each.sampling_logp for each in samples)]),
            "advantage": np.repeat(
                _fp32([own for sample in samples for own in sample.advantages]),
                [len(places) for sample in samples for places in sample.sampled],
            ),
            "reward": np.repeat(_fp32([sample.reward for sample in samples]), lengths),
            "weight": np.repeat(_fp32([sample.weight for sample in samples]), lengths),
            "num_tokens": np.repeat(_fp32(lengths), lengths),
            **predictions,
            **of_pictures,
            **({} if batch.routes is None else {"routes": batch.routes.ravel()}),
        },
        device,
    )
    if batch.routes is not None:
        there["routes"] = there["routes"].view(batch.routes.shape)
    pictures = None
    if of_pictures:
        at, places_there, rotary = (there.pop(name) for name in of_pictures)
        pictures = RowPictures(
            pictures=batch.pictures, nodes=at, places=places_there, rotary=rotary.view(3, -1)
        )
    return DeviceRow(
        batch=batch,
        lengths=lengths,
        smallest_id=int(used.min()),
        largest_id=int(used.max()),
        depth=int(batch.positions.max()),
        predictions=Predictions(**{name: there.pop(name) for name in predictions}, bounds=bounds),
        columns=TokenBatch(
            **{name: there.pop(name) for name in _COLUMNS}, reference=None, mean_log_ratio=None
        ),
        versions=versions,
        pictures=pictures,
        **there,
    )


def _without_pictures(batch: PackedBatch) -> tuple[Array, dict[str, Array]]:
    """The row's tokens with 0 for those of pictures, and the arrays of `RowPictures` by name;
    nothing for a row without pictures."""
    if batch.rotary is None:
        return batch.tokens, {}
    nodes = np.flatnonzero(batch.tokens >= FIRST_PICTURE_ID)
    ids = batch.tokens[nodes]
    firsts = np.array([picture.first_id for picture in batch.pictures])
    sizes = np.array([picture.num_tokens for picture in batch.pictures])
    which = np.searchsorted(firsts, ids, "right") - 1
    tokens = batch.tokens.copy()
    tokens[nodes] = 0
    return tokens, {
        "picture_nodes": nodes,
        "picture_places": (np.cumsum(sizes) - sizes - firsts)[which] + ids,
        "rotary": batch.rotary.reshape(-1),
    }


def idle_row(device: torch.device, num_tokens: int = 1) -> DeviceRow:
    """A row of one sequence of zeros, without a sample: a pass over it adds nothing."""
    nodes, zeros = np.arange(num_tokens), np.zeros(num_tokens, dtype=np.int64)
    chain = PackedBatch(
        tokens=zeros,
        positions=nodes,
        subtree_ends=np.full(num_tokens, num_tokens),
        predictors=nodes,
        targets=zeros,
        samples=(),
        num_prompt_nodes=num_tokens,
    )
    return row_of(chain, device)


def rows_to_compile(
    device: torch.device, window: int | None, max_tokens: int
) -> Iterator[DeviceRow]:
    """Yield idle rows of every kind for which a GPU's kernels are compiled: of one token, of one
    block of queries, of several, and longer than the model's sliding window; none is longer than
    `max_tokens`, but for that of one token."""
    lengths = [1, QUERIES_PER_BLOCK // 2, 3 * QUERIES_PER_BLOCK]
    if window is not None:
        lengths.append(window + 3 * QUERIES_PER_BLOCK)
    for length in lengths:
        if length <= max(1, max_tokens):
            yield idle_row(device, length)


_COLUMNS = ("sampling_logp", "advantage", "reward", "weight", "num_tokens")


def prepared(rows: Sequence[Sequence[SamplePaths]], device: torch.device) -> Iterator[DeviceRow]:
    """Yield the rows in their order, each packed in a thread while the one before is used."""
    with ThreadPoolExecutor(1, "rows") as beside:
        coming: deque[Future[DeviceRow]] = deque()
        for row in rows:
            coming.append(beside.submit(lambda row: row_of(pack_paths(row), device), row))
            if len(coming) > 1:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def moved(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """The arrays as tensors on the device: one copy of all, which a GPU makes from pinned memory
    behind what it has to do, so that nothing waits."""
    starts: dict[str, int] = {}
    end = 0
    for name, array in arrays.items():
        starts[name], end = end, end + -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for name, array in arrays.items():
        target = packed.numpy()[starts[name] : starts[name] + array.nbytes]
        target.view(array.dtype)[:] = array
    there = packed.to(device, non_blocking=True)
    return {
        name: there[starts[name] : starts[name] + array.nbytes].view(_DTYPES[array.dtype.char])
        for name, array in arrays.items()
    }


_DTYPES = {
    np.dtype(np.int64).char: torch.int64,
    np.dtype(np.float32).char: torch.float32,
    np.dtype(np.int16).char: torch.int16,
}


def _fp32(values: Sequence[float]) -> Array:
    return np.array(values, dtype=np.float32)
